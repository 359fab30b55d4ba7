package io.github.redislock;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Tie;
import java.lang.System.Logger.Level;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * The state of a grant: it is renewed while it is held, until it is released or lost. Its times are
 * those of the {@link Clock}.
 */
final class Grant {
  /** The least time by which a renewal must move the deadline. */
  private static final long LEAST_NANOS = TimeUnit.MILLISECONDS.toNanos(2);

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
  private final @Nullable Tie tie;
  /** True if a command that asked for this grant may still arrive. */
  private volatile boolean isUnclear;
  /** The time until which the server keeps a lock with a least hold. */
  private final long staysUntil;
  /** The time of the request, or -1 before the first lease. */
  private long grantedAt = -1;
  private volatile long deadline = -1;
  private volatile long renewAt = Clock.NEVER;
  private volatile Duration lease;
  /** True while a renewal runs: one at a time, because each may move the tie. */
  private final AtomicBoolean isRenewing = new AtomicBoolean();
  /** True if the observer knows that a renewal was refused. */
  private volatile boolean isRefused;
  /** The thread whose end drops the grant, or null. */
  private volatile @Nullable Thread owner;
  /** The hold of the program, or null before the program has one. */
  private volatile @Nullable WeakReference<Hold> hold;

  Grant(RedisLock lock, String token, long fence) {
    this.lock = lock;
    this.token = token;
    this.fence = fence;
    locks = lock.locks;
    commands = locks.commands;
    recipe = lock.recipe;
    lease = recipe.options().lease;
    staysUntil = Clock.after(Clock.now(), Clock.nanosOf(recipe.options().leastHold));
    tie = recipe.options().session ? new Tie(Clock.nanosOf(lease)) : null;
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
    return state.get() == State.LOST || state.get() == State.HELD && Clock.now() >= deadline;
  }

  /** Returns the time until the loss if the lease isn't renewed; 0 if the grant ended. */
  long leftNanos() {
    return isEnded() ? 0 : Math.max(deadline - Clock.now(), 0);
  }

  /** Notes that a command that asked for this grant may still arrive. */
  void unclear() {
    isUnclear = true;
  }

  /** Sets the thread whose end drops the grant. */
  void ownedBy(Thread thread) {
    owner = thread;
  }

  /** Sets the hold of the program, which hears of a loss. */
  void heldBy(Hold program) {
    hold = new WeakReference<>(program);
  }

  // --- the lease ---------------------------------------------------------------------------------

  /** Moves the deadline. The server counts the lease from the request or later. */
  synchronized void prolong(Duration granted, long askedAt) {
    if (grantedAt < 0) grantedAt = askedAt;
    long nanos = Clock.nanosOf(granted);
    deadline = Math.max(deadline, Clock.after(askedAt, nanos) - recipe.marginNanos());
    boolean isLast = deadline >= longestDeadline() - LEAST_NANOS;
    boolean isRenewed = recipe.options().renewed && !isLast;
    // A late command of the acquire sets its own lease, which may be shorter.
    long every = isUnclear ? Math.min(nanos, recipe.firstLeaseNanos()) / 3 : nanos / 3;
    renewAt = isRenewed ? Clock.after(askedAt, every) : Clock.NEVER;
  }

  private long longestDeadline() {
    return Clock.after(Math.max(grantedAt, 0), Clock.nanosOf(recipe.options().longest()));
  }

  /** Returns when the keeper must look at this grant. */
  long due() {
    return Math.min(renewAt, deadline);
  }

  /** Repeats a renewal that failed. Returns when the keeper must look again. */
  long postpone(long now) {
    renewAt = Clock.after(now, Clock.nanosOf(lease) / 10);
    return due();
  }

  /** Renews the grant, or tells of its loss, if that is due. Returns when to look again. */
  long lookAfter(long now) {
    Thread thread = owner;
    if (now >= deadline) {
      lose();
      return Clock.NEVER;
    }
    if (now < renewAt) return due();
    renewAt = Clock.NEVER;
    if (thread != null && !thread.isAlive()) {
      drop();
      return Clock.NEVER;
    }
    if (isRenewing.compareAndSet(false, true)) startRenewal();
    return due();
  }

  private void startRenewal() {
    boolean isStarted = false;
    try {
      Background.run(this::renew);
      isStarted = true;
    } finally {
      if (!isStarted) isRenewing.set(false);
    }
  }

  private void renew() {
    long longest = longestDeadline() - Clock.now() + recipe.marginNanos();
    Duration whole = Duration.ofNanos(Math.max(longest, 0)).plusNanos(999_999);
    Duration next = lease.compareTo(whole) < 0 ? lease : Duration.ofMillis(whole.toMillis());
    try {
      Call.uninterruptibly(tie, call -> commands.retryInBackground(
          call, deadline, end -> extendOnce(call, next, end)));
      isRefused = false;
    } catch (RuntimeException | Error error) {
      if (error instanceof LockException refusal) tellRefused(refusal);
      else Events.LOG.log(Level.WARNING, "a renewal failed, and is repeated soon", error);
      postpone(Clock.now());
    } finally {
      isRenewing.set(false);
    }
    locks.keeper.hold(this);
  }

  private void tellRefused(LockException refusal) {
    if (isRefused || isLost() || refusal instanceof UnavailableException) return;
    isRefused = true;
    String text = "the server refused a renewal: " + refusal.getMessage();
    UnavailableException told = new UnavailableException(text, refusal, false, "");
    Events.tell(() -> commands.observer.unavailable(told));
  }

  private boolean extendOnce(Call call, Duration next, long end) throws InterruptedException {
    // A renewal that is repeated after the release would undo its least hold.
    if (isEnded()) return false;
    long askedAt = Clock.now();
    Command command = recipe.extend(token, next, call.tie() != null);
    if (!isOfAllKeys(commands.ask(command, call, token, end))) {
      // The keys that aren't lost stay until the release, because the body may still run.
      lose();
      return false;
    }
    prolong(next, askedAt);
    if (call.tie() != null) call.tie().moved(askedAt);
    return !isEnded();
  }

  private boolean isOfAllKeys(@Nullable Object count) {
    return Long.valueOf(recipe.keys().size()).equals(count);
  }

  /** Ties the grant to a connection, which stays out of its pool from now on. */
  void tie(Call call, long until) throws InterruptedException {
    if (tie == null) return;
    Call tied = call.on(tie);
    long end = Math.min(until, Clock.after(Clock.now(), commands.timeoutNanos));
    boolean isHeld = false;
    try {
      isHeld = commands.retry(tied, end, at -> extendOnce(tied, recipe.options().firstLease(), at));
    } finally {
      if (!isHeld) {
        end(State.LEFT);
        tie.cut();
      }
    }
    if (!isHeld) throw new LockLostException("lost before it was tied to a connection: " + name());
  }

  /** Sets the lease. Returns false if the lock was lost. */
  boolean extend(Duration asked) {
    Duration next = LockOptions.time("lease", asked, Duration.ofMillis(1));
    boolean isLong = next.compareTo(recipe.options().marginOrDefault()) > 0;
    LockOptions.check("lease", isLong, "greater than the margin");
    checkNotReleased();
    if (isLost() || !takeOver(next)) return false;
    locks.keeper.hold(this);
    return true;
  }

  /** Sets the lease, also of a grant that another process acquired. */
  boolean takeOver(Duration next) {
    return Call.uninterruptibly(call -> {
      long end = Clock.after(Clock.now(), commands.timeoutNanos);
      boolean isHeld = commands.retry(call, end, at -> extendOnce(call, next, at));
      if (isHeld) lease = next;
      return isHeld;
    });
  }

  /** Makes the grant shared, for a thread that reads on after it wrote. False after a loss. */
  boolean share(LockOptions shared) {
    Recipe next = recipe.with(shared);
    try {
      return Call.uninterruptibly(call -> {
        long end = Clock.after(Clock.now(), commands.timeoutNanos);
        return commands.retry(call, end, at -> shareOnce(call, next, at));
      });
    } catch (RuntimeException error) {
      unclear();
      commands.goOn(call -> release());
      throw error;
    }
  }

  private boolean shareOnce(Call call, Recipe next, long end) throws InterruptedException {
    if (!isHeld()) return false;
    long askedAt = Clock.now();
    Object reply = commands.ask(next.share(token), call, token, end);
    if (call.unanswered() > 0) unclear();
    boolean isSame = reply instanceof List<?> granted && granted.get(1).equals(fence);
    if (isSame && isHeld()) {
      recipe = next;
      prolong(next.options().firstLease(), askedAt);
      return true;
    }
    // The server may have granted the lock anew.
    if (lose()) commands.goOn(rest -> leave(rest, Clock.NEVER, Clock.now(), null));
    return false;
  }

  // --- the end -----------------------------------------------------------------------------------

  /** Returns false if the grant ended before. */
  private boolean end(State end) {
    if (!state.compareAndSet(State.HELD, end)) return false;
    locks.keeper.drop(this);
    return true;
  }

  /** Ends the grant as lost, and tells the program once if it has a hold. */
  private boolean lose() {
    if (!end(State.LOST)) return false;
    tellLost();
    if (tie != null) {
      // Its close releases the lock, so the connections stay open for a margin.
      commands.goOn(call -> {
        call.sleep(Clock.after(Clock.now(), recipe.marginNanos()));
        tie.cut();
        return null;
      });
    }
    return true;
  }

  private void tellLost() {
    WeakReference<Hold> known = hold;
    if (known == null) return;
    Hold program = known.get();
    Hold told = program == null ? new Hold(this) : program;
    Runnable tells = () -> {
      Events.tell(() -> commands.observer.lost(told));
      var onLost = recipe.options().onLost;
      if (onLost != null) Events.tell(() -> onLost.accept(told));
    };
    try {
      Background.run(tells);
    } catch (OutOfMemoryError noThread) {
      tells.run();
    }
  }

  /** Releases the grant of a program that dropped it, which is a loss. */
  void drop() {
    if (!end(State.LEFT) || commands.isClosed()) return;
    Events.LOG.log(Level.WARNING, "a hold of " + name() + " was dropped without a release");
    tellLost();
    commands.goOn(call -> leave(call, Clock.NEVER, Clock.now(), null));
  }

  /** Leaves the grant to another process. */
  void detach() {
    if (tie != null) throw new IllegalStateException("a session ends with its connection");
    if (!end(State.LEFT)) throw notHeld();
  }

  /** Ends the ties of a grant when its locks are closed. */
  void abandon() {
    cutTie();
  }

  boolean release() {
    return release(Clock.after(Clock.now(), commands.timeoutNanos), null);
  }

  /** Releases the lock, which the server keeps for a time. */
  boolean releaseIn(Duration rest) {
    return release(Clock.after(Clock.now(), commands.timeoutNanos), rest);
  }

  /** Tells the observer of a release that failed, which no caller hears of. */
  void tellUnreleased(LockException failure) {
    UnavailableException outage = failure instanceof UnavailableException unavailable
        ? unavailable
        : new UnavailableException("the server refused a release: " + failure.getMessage(),
            failure, false, "");
    Events.tell(() -> commands.observer.unavailable(outage));
  }

  /**
   * Releases the lock until a time. Later the release goes on without a caller.
   *
   * @param rest how long the server keeps the lock, or null for the rest of the least hold
   * @return true if the grant still held
   */
  boolean release(long until, @Nullable Duration rest) {
    long now = Clock.now();
    boolean wasLost = isLost();
    if (!end(State.LEFT)) {
      if (!state.compareAndSet(State.LOST, State.LEFT)) throw notHeld();
      wasLost = true;
    }
    try {
      return Call.uninterruptibly(call -> leave(call, until, now, rest)) && !wasLost;
    } catch (UnavailableException outage) {
      commands.goOn(call -> leave(call, Clock.NEVER, now, rest));
      if (wasLost) return false;
      throw outage;
    } catch (RuntimeException | Error error) {
      cutTie();
      if (wasLost && error instanceof LockException) return false;
      throw error;
    }
  }

  /** Sends the release until a server has replied, or the time or the lease is over. */
  private boolean leave(Call call, long until, long now, @Nullable Duration rest)
      throws InterruptedException {
    boolean isInBackground = until == Clock.NEVER;
    long leaseEnd = Clock.after(Math.max(deadline, now), recipe.marginNanos());
    Commands.Attempt<Boolean> once = end -> {
      Object count = commands.ask(lastCommand(now, rest), call, token, end);
      // If a reply was lost, the command before may have released the lock.
      return isOfAllKeys(count) || call.unanswered() > 0 && Clock.now() < deadline;
    };
    try {
      boolean isHeld = isInBackground
          ? commands.retryInBackground(call, leaseEnd, once)
          : commands.retry(call, until, once);
      if (tie != null) tie.close();
      return isHeld;
    } finally {
      if (isInBackground) cutTie();
    }
  }

  private void cutTie() {
    if (tie != null) tie.cut();
  }

  private Command lastCommand(long releasedAt, @Nullable Duration rest) {
    LockOptions options = recipe.options();
    long end = rest == null
        ? staysUntil
        : Clock.after(releasedAt, Clock.nanosOf(rest));
    long left = end - Clock.now();
    if (left > 0) return recipe.releaseAfter(token, left);
    // A late command has the lease of the acquire, which an extend may have made shorter.
    return isUnclear ? recipe.leave(token, options.longestTrace()) : recipe.release(token);
  }

  /** Asks the server whether this grant holds all its keys. */
  boolean isOwned() {
    return commands.ofEachKey(recipe, "CHECK", token, token).stream()
        .allMatch(left -> left instanceof Long millis && millis > 0);
  }

  void checkNotReleased() {
    if (isReleased()) throw notHeld();
  }

  String name() {
    return recipe.name();
  }

  LockLostException lostError() {
    return new LockLostException("lost before it was released: " + name());
  }

  private IllegalMonitorStateException notHeld() {
    return new IllegalMonitorStateException("released or lost before: " + name());
  }
}
