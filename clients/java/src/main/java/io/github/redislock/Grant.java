package io.github.redislock;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import java.lang.System.Logger.Level;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * The state of a grant: it is renewed while it is held, until it is released or lost. Its times are
 * those of the {@link Clock}.
 */
final class Grant {
  private enum State {
    HELD,
    LOST,
    LEFT
  }

  final RedisLock lock;
  final String token;
  final long fence;
  /** The keys and options, which change when a writer goes on as a reader. */
  private volatile Recipe recipe;
  private final Locks locks;
  private final Commands commands;
  private final AtomicReference<State> state = new AtomicReference<>(State.HELD);
  /** True if a command that asked for this grant may still arrive. */
  private volatile boolean isUnclear;
  /** The time until which the server keeps a lock with a least hold. */
  final long staysUntil;
  /** The deadline of the last renewal. */
  private final long longestUntil;
  private volatile long deadline = -1;
  private volatile long renewAt = Clock.NEVER;
  private volatile long leaseMs;
  /** Closes the connection of a session. Otherwise the server would go on renewing the lock. */
  private volatile Runnable closing = () -> {};
  /** The next look after the grant, or null before the first. */
  private @Nullable Future<?> look;
  /** True if the observer knows that a renewal was refused. */
  private boolean isRefused;
  /** The thread whose end drops the grant, or null. */
  volatile @Nullable Thread owner;
  /** The hold of the program, or null before the program has one. */
  volatile @Nullable WeakReference<Hold> hold;

  Grant(RedisLock lock, String token, long fence, long askedAt, boolean isUnclear) {
    this.lock = lock;
    this.token = token;
    this.fence = fence;
    this.isUnclear = isUnclear;
    locks = lock.locks;
    commands = locks.commands;
    recipe = lock.recipe;
    LockOptions options = recipe.options();
    leaseMs = options.leaseMs;
    staysUntil = Clock.after(Clock.now(), TimeUnit.MILLISECONDS.toNanos(options.leastHoldMs));
    longestUntil = Clock.after(askedAt, TimeUnit.MILLISECONDS.toNanos(options.longestMs()));
  }

  Recipe recipe() {
    return recipe;
  }

  boolean isHeld() {
    return state.get() == State.HELD && Clock.now() < deadline;
  }

  boolean isEnded() {
    return state.get() != State.HELD;
  }

  boolean isReleased() {
    return state.get() == State.LEFT;
  }

  boolean isLost() {
    return !isReleased() && !isHeld();
  }

  /** Returns the time until the loss if the lease isn't renewed; 0 if the grant ended. */
  long leftNanos() {
    return isEnded() ? 0 : Math.max(deadline - Clock.now(), 0);
  }

  // --- the lease ---------------------------------------------------------------------------------

  /** Moves the deadline. The server counts the lease from the request or later. */
  synchronized void prolong(long grantedMs, long askedAt) {
    long nanos = TimeUnit.MILLISECONDS.toNanos(grantedMs);
    // A late command of the acquire sets its own lease, which may be shorter.
    long shortest = isUnclear ? Math.min(nanos, recipe.firstLeaseNanos()) : nanos;
    deadline = Math.max(deadline, Clock.after(askedAt, shortest) - recipe.marginNanos());
    boolean isRenewed = recipe.options().renewed && deadline < longestUntil;
    renewAt = isRenewed ? Clock.after(askedAt, shortest / 3) : Clock.NEVER;
  }

  /** Looks after the grant from now on, until it ends or its locks are closed. */
  synchronized void keep() {
    if (look != null) look.cancel(false);
    if (isEnded() || commands.isClosed()) return;
    locks.held.add(this);
    long left = Math.min(renewAt, deadline) - Clock.now();
    look = Background.TIMER.schedule(this::look, left, TimeUnit.NANOSECONDS);
  }

  /** Renews the grant, or tells of its loss, if that is due. */
  private void look() {
    Thread thread = owner;
    long now = Clock.now();
    if (now >= deadline) {
      lose();
    } else if (now < renewAt) {
      keep();
    } else if (thread != null && !thread.isAlive()) {
      drop();
    } else {
      renewAt = Clock.NEVER;
      keep();
      commands.goOn(this::renew, this::endRenewal);
    }
  }

  private boolean renew(Call call) throws InterruptedException {
    long mostMs = (longestUntil - Clock.now() + recipe.marginNanos()) / 1_000_000 + 1;
    long nextMs = Math.max(Math.min(leaseMs, mostMs), 1);
    try {
      boolean isHeld = commands.retry(call, deadline, commands::report,
          end -> extendOnce(call, recipe.extend(token, nextMs), nextMs, end));
      isRefused = false;
      return isHeld;
    } catch (UnavailableException told) {
      return false;
    } catch (RuntimeException | Error error) {
      if (!isRefused) tell("the server refused a renewal: ", error);
      isRefused = true;
      throw error;
    }
  }

  /** Ends a renewal. One that failed is repeated. */
  private void endRenewal() {
    if (renewAt == Clock.NEVER && deadline < longestUntil) {
      renewAt = Clock.after(Clock.now(), TimeUnit.MILLISECONDS.toNanos(leaseMs) / 10);
    }
    keep();
  }

  private boolean extendOnce(Call call, Command command, long nextMs, long end)
      throws InterruptedException {
    // A renewal that is repeated after the release would undo its least hold.
    if (isEnded()) return false;
    if (!isOfAllKeys(commands.ask(command, call, token, end))) {
      // The keys that aren't lost stay until the release, because the body may still run.
      lose();
      return false;
    }
    prolong(nextMs, call.sentAt());
    return !isEnded();
  }

  private boolean isOfAllKeys(@Nullable Object count) {
    return Long.valueOf(recipe.keys().size()).equals(count);
  }

  /** Ties the grant to a connection, which is closed with it, if it is a session. */
  void tie(Call call, long until) throws InterruptedException {
    if (!recipe.options().session) return;
    long nextMs = recipe.options().firstLeaseMs();
    long end = Math.min(until, Clock.after(Clock.now(), commands.attemptNanos));
    int unanswered = call.unanswered();
    boolean isHeld = false;
    call.lendTo(close -> closing = close);
    try {
      boolean isTied = extendOnce(call, recipe.tie(token, nextMs), nextMs, end);
      // The first of two commands may arrive late, and tie the grant to a connection that is dead.
      boolean isOnce = call.unanswered() == unanswered;
      if (!isOnce) throw new UnavailableException("the tie was sent twice", null, true, "");
      isHeld = isTied;
    } finally {
      call.lendTo(null);
      if (!isHeld) {
        end(State.LEFT);
        closing.run();
      }
    }
    if (!isHeld) throw new LockLostException("lost before it was tied to a connection: " + name());
  }

  /** Sets the lease. Returns false if the lock was lost. */
  boolean extend(Duration asked) {
    long nextMs = LockOptions.time("lease", asked, 1);
    boolean isLong = nextMs > recipe.options().marginOrDefaultMs();
    LockOptions.check("lease", isLong, "greater than the margin");
    if (isReleased()) throw notHeld();
    if (isLost() || !takeOver(nextMs)) return false;
    keep();
    return true;
  }

  /** Sets the lease, also of a grant that another process acquired. */
  boolean takeOver(long nextMs) {
    return Call.uninterruptibly(call -> {
      boolean isHeld = commands.retry(call, commands.timeout(),
          end -> extendOnce(call, recipe.extend(token, nextMs), nextMs, end));
      if (isHeld) leaseMs = nextMs;
      return isHeld;
    });
  }

  /** Makes the grant shared, for a thread that reads on after it wrote. False after a loss. */
  boolean share(Recipe next) {
    try {
      return Call.uninterruptibly(call ->
          commands.retry(call, commands.timeout(), end -> shareOnce(call, next, end)));
    } catch (RuntimeException | Error error) {
      isUnclear = true;
      commands.goOn(call -> release(), () -> {});
      throw error;
    }
  }

  private boolean shareOnce(Call call, Recipe next, long end) throws InterruptedException {
    if (!isHeld()) return false;
    Object reply = commands.ask(next.share(token), call, token, end);
    isUnclear |= call.unanswered() > 0;
    boolean isSame = reply instanceof List<?> granted && granted.get(1).equals(fence);
    if (isSame && isHeld()) {
      recipe = next;
      prolong(next.options().firstLeaseMs(), call.sentAt());
      return true;
    }
    // The server may have granted the lock anew.
    if (lose()) leaveInBackground(staysUntil);
    return false;
  }

  // --- the end -----------------------------------------------------------------------------------

  /** Returns false if the grant ended before. */
  private boolean end(State end) {
    if (!state.compareAndSet(State.HELD, end)) return false;
    synchronized (this) {
      locks.held.remove(this);
      if (look != null) look.cancel(false);
    }
    return true;
  }

  /** Ends the grant as lost, and tells the program once if it has a hold. */
  private boolean lose() {
    if (!end(State.LOST)) return false;
    tellLost();
    // The close of a session releases the lock, so its connection stays open for a margin.
    Background.TIMER.schedule(closing, recipe.marginNanos(), TimeUnit.NANOSECONDS);
    return true;
  }

  private void tellLost() {
    WeakReference<Hold> known = hold;
    if (known == null) return;
    Hold program = known.get();
    Hold told = program == null ? new Hold(this) : program;
    commands.goOn(call -> {
      Commands.tell(() -> commands.observer.lost(told));
      var onLost = recipe.options().onLost;
      if (onLost != null) Commands.tell(() -> onLost.accept(told));
      return null;
    }, () -> {});
  }

  /** Releases the grant of a program that dropped it, which is a loss. */
  void drop() {
    if (!end(State.LEFT) || commands.isClosed()) return;
    Commands.LOG.log(Level.WARNING, "a hold of " + name() + " was dropped without a release");
    tellLost();
    leaveInBackground(staysUntil);
  }

  /** Leaves the grant to another process. */
  void detach() {
    boolean isSession = recipe.options().session;
    if (isSession) throw new IllegalStateException("a session ends with its connection");
    if (!end(State.LEFT)) throw notHeld();
  }

  boolean release() {
    return release(commands.timeout(), staysUntil);
  }

  /** Releases the lock, which the server keeps for a time. */
  boolean releaseIn(Duration rest) {
    return release(commands.timeout(), Clock.after(Clock.now(), rest.toNanos()));
  }

  /**
   * Releases the lock until a time. Later the release goes on without a caller.
   *
   * @param stays the time until which the server keeps the lock
   * @return true if the grant still held
   */
  boolean release(long until, long stays) {
    boolean wasLost = isLost();
    if (!end(State.LEFT)) {
      if (!state.compareAndSet(State.LOST, State.LEFT)) throw notHeld();
      wasLost = true;
    }
    try {
      boolean isHeld = Call.uninterruptibly(call ->
          commands.retry(call, until, end -> leaveOnce(call, stays, end)));
      closing.run();
      return isHeld && !wasLost;
    } catch (UnavailableException outage) {
      leaveInBackground(stays);
      if (wasLost) return false;
      throw outage;
    } catch (RuntimeException | Error error) {
      closing.run();
      if (wasLost && error instanceof LockException) return false;
      throw error;
    }
  }

  /** Sends the release until a server has replied, or the lease is over. */
  private void leaveInBackground(long stays) {
    long over = Clock.after(Math.max(deadline, Clock.now()), recipe.marginNanos());
    commands.goOn(call -> commands.retry(
        call, over, commands::report, end -> leaveOnce(call, stays, end)), closing);
  }

  private boolean leaveOnce(Call call, long stays, long end) throws InterruptedException {
    Object count = commands.ask(lastCommand(stays), call, token, end);
    // If a reply was lost, the command before may have released the lock.
    return isOfAllKeys(count) || call.unanswered() > 0 && Clock.now() < deadline;
  }

  private Command lastCommand(long stays) {
    long left = stays - Clock.now();
    if (left > 0) return recipe.releaseAfter(token, left);
    // A late command has the lease of the acquire, which an extend may have made shorter.
    return isUnclear ? recipe.leave(token, recipe.longestTraceMs()) : recipe.release(token);
  }

  /** Tells the observer of a failure that no caller hears of. */
  void tell(String text, Throwable failure) {
    UnavailableException told = failure instanceof UnavailableException outage
        ? outage
        : new UnavailableException(text + failure.getMessage(), failure, false, "");
    Commands.tell(() -> commands.observer.unavailable(told));
  }

  /** Asks the server whether this grant holds all its keys. */
  boolean isOwned() {
    return commands.ofEachKey(recipe, "CHECK", token, token).stream()
        .allMatch(left -> left instanceof Long millis && millis > 0);
  }

  String name() {
    return recipe.name();
  }

  IllegalMonitorStateException notHeld() {
    return new IllegalMonitorStateException("released or lost before: " + name());
  }
}
