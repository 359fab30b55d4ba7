package io.github.redislock;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
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
  /** The mark of a token that has no command on its way. */
  private static final Duration SHORTEST_LEAVE = Duration.ofMillis(1);

  private final RedisLock lock;
  private final Recipe recipe;
  private final Commands commands;
  private final Call call;
  private final String token;
  private final boolean isTry;
  private final long began = Clock.now();
  private final long until;
  private final long grace;
  /** The time that the server takes to wait for replicas. */
  private final long replicasNanos;
  /** True if the latest reply was "not now", and nothing failed since. */
  private boolean isRefused;
  /** True if the server may have a place or a grant of this token. */
  private boolean isKnown;
  /** True if the lock wasn't granted at once. */
  private boolean hasWaited;

  /** Makes an acquire with a limit in nanoseconds. A limit of 0 asks without waiting. */
  Acquire(RedisLock lock, Call call, String token, long limit) {
    this.lock = lock;
    this.call = call;
    this.token = token;
    recipe = lock.recipe;
    commands = lock.locks.commands;
    isTry = limit == 0;
    until = Clock.after(began, isTry ? commands.timeoutNanos : limit);
    replicasNanos = recipe.options().replicas == 0 ? 0 : commands.timeoutNanos;
    grace = GRACE_NANOS + replicasNanos;
  }

  boolean hasWaited() {
    return hasWaited;
  }

  Duration time() {
    return Duration.ofNanos(Clock.now() - began);
  }

  /** Returns the grant, or null if the server said "not now" until the limit. */
  @Nullable Grant run() throws InterruptedException {
    Crowd crowd = lock.locks.crowds.join(recipe.names());
    try {
      return isTry ? asked(crowd) : inCrowd(crowd);
    } finally {
      lock.locks.crowds.part(recipe.names());
    }
  }

  private @Nullable Grant inCrowd(Crowd crowd) throws InterruptedException {
    if (!crowd.enter(call, until)) {
      hasWaited = true;
      // The acquires that ask hear from the server at each sign of life, and note failures.
      long longest = SIGN_OF_LIFE_NANOS + commands.timeoutNanos;
      if (crowd.hasReplyAfter(began - longest)) return null;
      String text = "no reply from the server to the acquires before this one";
      throw new UnavailableException(text, null, true, "");
    }
    try {
      return asked(crowd);
    } finally {
      crowd.leave();
    }
  }

  private @Nullable Grant asked(Crowd crowd) throws InterruptedException {
    boolean isTold = false;
    Grant granted = null;
    try {
      Grant grant = untilGranted(crowd);
      if (grant != null) grant.tie(call, Clock.after(until, grace));
      granted = grant;
      return grant;
    } catch (UnavailableException outage) {
      isTold = true;
      throw outage;
    } finally {
      if (granted == null) leave(isTold);
    }
  }

  private @Nullable Grant untilGranted(Crowd crowd) throws InterruptedException {
    long pause = Commands.FIRST_PAUSE_NANOS;
    UnavailableException cause = null;
    while (true) {
      if (isRefused && Clock.now() >= until) return null;
      long askedAt = Clock.now();
      Object reply;
      try {
        reply = ask(askedAt);
      } catch (UnavailableException fault) {
        if (Clock.now() >= until && fault.isLate && isRefused) return null;
        isRefused = false;
        hasWaited = true;
        // The end of a limit says nothing about the server.
        if (Clock.now() < until || !fault.isLate) crowd.failed();
        if (until == Clock.NEVER) commands.report(fault);
        // A last try that had little time says nothing about the cause.
        if (cause == null || until - askedAt > Commands.FIRST_PAUSE_NANOS) cause = fault;
        commands.pause(call, pause, until, cause);
        pause = Commands.next(pause);
        continue;
      }
      pause = Commands.FIRST_PAUSE_NANOS;
      cause = null;
      crowd.replied();
      if (reply instanceof List<?> granted) {
        boolean isInTime = Clock.now() - askedAt <= recipe.firstLeaseNanos() / 3;
        if (isInTime) return grant(granted, askedAt);
        // The grant may be over. If it isn't, the server sets its lease anew.
        continue;
      }
      isRefused = true;
      if (isTry) return null;
      hasWaited = true;
    }
  }

  /** Asks once. Notes whether the server may know this token afterwards. */
  private @Nullable Object ask(long askedAt) throws InterruptedException {
    boolean wasKnown = isKnown;
    int unanswered = call.unanswered();
    long left = until - askedAt;
    boolean isFirst = isTry || !hasWaited;
    long block = Math.min(Math.min(SIGN_OF_LIFE_NANOS, recipe.firstLeaseNanos() / 3), left);
    Command command = isFirst
        ? recipe.acquire(token, commands.timeoutNanos)
        : recipe.waitFor(token, block, left, commands.timeoutNanos);
    boolean keepsPlace = !isFirst && block < left;
    long by = Clock.after(askedAt, commands.attemptNanos + command.blockNanos());
    long end = isTry && replicasNanos == 0 ? until : Clock.after(until, grace);
    isKnown = true;
    try {
      Object reply = commands.ask(command, call, token, Math.min(by, end));
      // A command before may be executed after this one.
      isKnown = reply instanceof List || keepsPlace || call.unanswered() > 0;
      return reply;
    } catch (LockException error) {
      boolean isAnswered = call.unanswered() == unanswered;
      if (isAnswered && !(error instanceof NotReplicatedException)) isKnown = wasKnown;
      throw error;
    }
  }

  private Grant grant(List<?> reply, long askedAt) {
    Grant grant = new Grant(lock, token, (Long) reply.get(1));
    if (call.unanswered() > 0) grant.unclear();
    grant.prolong(recipe.options().firstLease(), askedAt);
    return grant;
  }

  /** Ends what the server may have of this token, in the background. */
  private void leave(boolean isTold) {
    if (!isKnown) return;
    Duration longest = recipe.options().longestTrace();
    boolean isUnclear = call.unanswered() > 0;
    Command command = recipe.leave(token, isUnclear ? longest : SHORTEST_LEAVE);
    long end = Clock.after(Clock.now(), Clock.nanosOf(longest));
    commands.goOn(cleanup -> {
      Commands.Attempt<Boolean> once = at -> commands.ask(command, cleanup, token, at) != null;
      return isTold
          ? commands.retry(cleanup, end, once)
          : commands.retryInBackground(cleanup, end, once);
    });
  }
}
