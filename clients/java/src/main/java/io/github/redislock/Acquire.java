package io.github.redislock;

import io.github.redislock.LockObserver.Outcome;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * An acquire of one token until a limit: it asks, it waits, and it leaves if it ends without a
 * grant. The states are those of docs/internals/clients.md.
 */
final class Acquire {
  /** The time after the limit in which a reply still counts. */
  private static final long GRACE_NANOS = TimeUnit.MILLISECONDS.toNanos(100);
  /** The longest time without a sign that the server lives, while a call waits. */
  private static final long SIGN_OF_LIFE_NANOS = TimeUnit.SECONDS.toNanos(2);

  private final RedisLock lock;
  private final Recipe recipe;
  private final Commands commands;
  private final Call call;
  private String token = Locks.drawToken();
  private final boolean isTry;
  private final long began = Clock.now();
  private final long until;
  /** The time at which a reply is too late. */
  private final long end;
  /** True if the latest reply was "not now", and nothing failed since. */
  private boolean isRefused;
  /** True if the server has a place or a grant of this token by its latest reply. */
  private boolean isKnown;
  /** True if the lock wasn't granted at once. */
  private boolean hasWaited;

  /** Makes an acquire with a limit in nanoseconds. A limit of 0 asks without waiting. */
  Acquire(RedisLock lock, Call call, long limit) {
    this.lock = lock;
    this.call = call;
    recipe = lock.recipe;
    commands = lock.locks.commands;
    isTry = limit == 0;
    until = Clock.after(began, isTry ? commands.timeoutNanos : limit);
    // A grant without enough replicas is refused, and stays at the server.
    isKnown = recipe.options().replicas > 0;
    long grace = isTry ? 0 : GRACE_NANOS;
    end = Clock.after(until, isKnown ? GRACE_NANOS + commands.timeoutNanos : grace);
  }

  /** Returns a hold, or null if the server said "not now" until the limit. */
  @Nullable Hold run() throws InterruptedException {
    Outcome outcome = Outcome.FAILED;
    Grant grant = null;
    try {
      grant = granted();
      outcome = grant == null ? Outcome.NOT_ACQUIRED : Outcome.GRANTED;
    } catch (InterruptedException | WaitCancelledException cancelled) {
      outcome = Outcome.CANCELLED;
      throw cancelled;
    } finally {
      if (hasWaited || grant == null) tellWaited(outcome);
    }
    return grant == null ? null : lock.locks.hold(grant);
  }

  private void tellWaited(Outcome outcome) {
    Duration time = Duration.ofNanos(Clock.now() - began);
    Commands.tell(() -> commands.observer.waited(lock, time, outcome));
  }

  private @Nullable Grant granted() throws InterruptedException {
    Crowd crowd = lock.locks.crowds.join(recipe.names());
    try {
      return isTry ? asked(crowd) : inCrowd(crowd);
    } finally {
      lock.locks.crowds.part(recipe.names());
    }
  }

  private @Nullable Grant inCrowd(Crowd crowd) throws InterruptedException {
    boolean isAsking = call.await(until,
        nanos -> crowd.asking.tryAcquire(nanos, TimeUnit.NANOSECONDS));
    if (!isAsking) {
      hasWaited = true;
      // The acquires that ask hear from the server at each sign of life, and note failures.
      if (crowd.repliedAt >= began - SIGN_OF_LIFE_NANOS - commands.timeoutNanos) return null;
      String text = "no reply from the server to the acquires before this one";
      throw new UnavailableException(text, null, true, "");
    }
    try {
      return asked(crowd);
    } finally {
      crowd.asking.release();
    }
  }

  private @Nullable Grant asked(Crowd crowd) throws InterruptedException {
    Consumer<UnavailableException> told = commands::report;
    Grant granted = null;
    try {
      granted = untilGranted(crowd);
      return granted;
    } catch (UnavailableException outage) {
      // The caller hears of it.
      told = fault -> {};
      throw outage;
    } finally {
      if (granted == null) leave(told);
    }
  }

  /** Ties a session. A late tie would end the grant, so the next try has another token. */
  private boolean isTied(Grant grant) throws InterruptedException {
    try {
      grant.tie(call, end);
      return true;
    } catch (LockLostException failover) {
      isRefused = false;
      return false;
    } catch (UnavailableException outage) {
      // A second try might meet what the first one leaves.
      if (isTry || Clock.now() >= until) throw outage;
      if (until == Clock.NEVER) commands.report(outage);
      leave(commands::report);
      token = Locks.drawToken();
      hasWaited = true;
      call.sleep(Math.min(until, Clock.after(Clock.now(), Commands.FIRST_PAUSE_NANOS)));
      return false;
    }
  }

  private @Nullable Grant untilGranted(Crowd crowd) throws InterruptedException {
    Consumer<UnavailableException> told = until == Clock.NEVER ? commands::report : fault -> {};
    while (true) {
      Object reply = commands.retry(call, until, told, at -> ask(crowd));
      boolean isInTime = Clock.now() - call.sentAt() <= recipe.firstLeaseNanos() / 3;
      if (reply instanceof List<?> granted) {
        // A late grant may be over. If it isn't, the server sets its lease anew.
        Grant grant = isInTime ? grant(granted) : null;
        if (grant != null && isTied(grant)) return grant;
      } else if (isTry || Clock.now() >= until) {
        return null;
      }
    }
  }

  /** Asks once. Returns null for "not now", also if that was the last reply before the limit. */
  private @Nullable Object ask(Crowd crowd) throws InterruptedException {
    try {
      Object reply = reply();
      crowd.repliedAt = Clock.now();
      isRefused = !(reply instanceof List);
      hasWaited |= isRefused && !isTry;
      return reply;
    } catch (UnavailableException fault) {
      boolean isOver = fault.isLate && Clock.now() >= until;
      if (isOver && isRefused) return null;
      isRefused = false;
      hasWaited = true;
      // The end of a limit says nothing about the server.
      if (!isOver) crowd.repliedAt = Crowd.NEVER;
      throw fault;
    }
  }

  private @Nullable Object reply() throws InterruptedException {
    long now = Clock.now();
    long left = until - now;
    long block = Math.min(Math.min(SIGN_OF_LIFE_NANOS, recipe.firstLeaseNanos() / 3), left);
    boolean isFirst = isTry || !hasWaited;
    Command command = isFirst
        ? recipe.acquire(token, commands.timeoutNanos)
        : recipe.waitFor(token, block, left, commands.timeoutNanos);
    long by = Clock.after(now, commands.attemptNanos + command.blockNanos());
    Object reply = commands.ask(command, call, token, Math.min(by, end));
    isKnown = reply instanceof List || !isFirst && block < left;
    return reply;
  }

  private Grant grant(List<?> reply) {
    boolean isUnclear = call.unanswered() > 0;
    Grant grant = new Grant(lock, token, (Long) reply.get(1), call.sentAt(), isUnclear);
    grant.prolong(recipe.options().firstLeaseMs(), call.sentAt());
    return grant;
  }

  /** Ends what the server may have of this token, in the background. */
  private void leave(Consumer<UnavailableException> told) {
    boolean isUnclear = call.unanswered() > 0;
    if (!isKnown && !isUnclear) return;
    long longest = recipe.longestTraceMs();
    // The shortest LEAVE is enough for a token that has no command on its way.
    Command command = recipe.leave(token, isUnclear ? longest : 1);
    long over = Clock.after(Clock.now(), TimeUnit.MILLISECONDS.toNanos(longest));
    commands.goOn(cleanup -> commands.retry(cleanup, over, told,
        at -> commands.ask(command, cleanup, token, at) != null), () -> {});
  }
}
