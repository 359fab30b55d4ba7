package io.github.redislock;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Session;
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
  private final @Nullable Session session;
  /** True if a command that asked for this grant may still arrive. */
  private volatile boolean isUnclear;
  /** The time until which the server keeps a lock with a least hold. */
  final long staysUntil;
  /** The deadline of the last renewal. */
  private final long longestUntil;
  private volatile long deadline = -1;
  private volatile long renewAt = Clock.NEVER;
  private volatile long leaseMs;
  /** The next look after the grant, or null before the first. */
  private @Nullable Future<?> look;
  /** True while a renewal runs: a session has one connection. */
  private volatile boolean isRenewing;
  /** True if the observer knows that a renewal was refused. */
  private boolean isRefused;
  /** The thread whose end drops the grant, or null. */
  volatile @Nullable Thread owner;
  /** The hold of the program, or null before the program has one. */
  private volatile @Nullable WeakReference<Hold> hold;

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
    session = options.session ? new Session() : null;
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

  /** Sets the hold of the program, which hears of a loss. */
  void heldBy(Hold program) {
    hold = new WeakReference<>(program);
  }

  // --- the lease ---------------------------------------------------------------------------------

  /** Moves the deadline. The server counts the lease from the request or later. */
  synchronized void prolong(long grantedMs, long askedAt) {
    long nanos = TimeUnit.MILLISECONDS.toNanos(grantedMs);
    deadline = Math.max(deadline, Clock.after(askedAt, nanos) - recipe.marginNanos());
    // A late command of the acquire sets its own lease, which may be shorter.
    long every = isUnclear ? Math.min(nanos, recipe.firstLeaseNanos()) / 3 : nanos / 3;
    boolean isRenewed = recipe.options().renewed && deadline < longestUntil;
    renewAt = isRenewed ? Clock.after(askedAt, every) : Clock.NEVER;
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
    } else if (now >= renewAt && thread != null && !thread.isAlive()) {
      drop();
    } else {
      if (now >= renewAt) startRenewal();
      keep();
    }
  }

  private void startRenewal() {
    renewAt = Clock.NEVER;
    if (isRenewing) return;
    isRenewing = true;
    try {
      Background.THREADS.execute(this::renew);
    } catch (OutOfMemoryError noThread) {
      isRenewing = false;
      postpone();
    }
  }

  private void renew() {
    long mostMs = (longestUntil - Clock.now() + recipe.marginNanos()) / 1_000_000 + 1;
    long nextMs = Math.max(Math.min(leaseMs, mostMs), 1);
    try {
      Call.uninterruptibly(call -> {
        call.use(session);
        return commands.retry(
            // A session waits for a late reply, because no other connection has the lock.
            call, deadline, commands::report,
            end -> extendOnce(call, nextMs, session == null ? end : Math.max(end, deadline)));
      });
      isRefused = false;
    } catch (UnavailableException told) {
      postpone();
    } catch (RuntimeException | Error error) {
      if (!isRefused) tell("the server refused a renewal: ", error);
      isRefused = true;
      postpone();
    } finally {
      isRenewing = false;
    }
    keep();
  }

  /** Repeats a renewal that failed. */
  private void postpone() {
    renewAt = Clock.after(Clock.now(), TimeUnit.MILLISECONDS.toNanos(leaseMs) / 10);
  }

  private boolean extendOnce(Call call, long nextMs, long end) throws InterruptedException {
    // A renewal that is repeated after the release would undo its least hold.
    if (isEnded()) return false;
    if (!isOfAllKeys(extended(call, nextMs, end))) {
      // The keys that aren't lost stay until the release, because the body may still run.
      lose();
      return false;
    }
    prolong(nextMs, call.sentAt());
    return !isEnded();
  }

  /** Returns the reply to an extension, or null if the connection of the session has failed. */
  private @Nullable Object extended(Call call, long nextMs, long end) throws InterruptedException {
    Session own = call.session();
    if (own == null) return commands.ask(recipe.extend(token, nextMs), call, token, end);
    try {
      return commands.ask(recipe.tie(token, nextMs), call, token, end);
    } catch (UnavailableException outage) {
      if (own.isClosed() && hold != null) return null;
      throw outage;
    }
  }

  private boolean isOfAllKeys(@Nullable Object count) {
    return Long.valueOf(recipe.keys().size()).equals(count);
  }

  /** Ties the grant to a connection, if it is a session. */
  void tie(Call call, long until) throws InterruptedException {
    if (session == null) return;
    call.use(session);
    boolean isHeld = false;
    try {
      long end = Math.min(until, Clock.after(Clock.now(), commands.attemptNanos));
      isHeld = extendOnce(call, recipe.options().firstLeaseMs(), end);
    } finally {
      call.use(null);
      if (!isHeld) {
        end(State.LEFT);
        session.close();
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
      boolean isHeld =
          commands.retry(call, commands.timeout(), end -> extendOnce(call, nextMs, end));
      if (isHeld) leaseMs = nextMs;
      return isHeld;
    });
  }

  /** Makes the grant shared, for a thread that reads on after it wrote. False after a loss. */
  boolean share(LockOptions shared) {
    Recipe next = new Recipe(recipe.names(), recipe.keys(), shared);
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
    Background.TIMER.schedule(this::close, recipe.marginNanos(), TimeUnit.NANOSECONDS);
    return true;
  }

  private void tellLost() {
    WeakReference<Hold> known = hold;
    if (known == null) return;
    Hold program = known.get();
    Hold told = program == null ? new Hold(this) : program;
    commands.goOn(call -> {
      Events.tell(() -> commands.observer.lost(told));
      var onLost = recipe.options().onLost;
      if (onLost != null) Events.tell(() -> onLost.accept(told));
      return null;
    }, () -> {});
  }

  /** Releases the grant of a program that dropped it, which is a loss. */
  void drop() {
    if (!end(State.LEFT) || commands.isClosed()) return;
    Events.LOG.log(Level.WARNING, "a hold of " + name() + " was dropped without a release");
    tellLost();
    leaveInBackground(staysUntil);
  }

  /** Leaves the grant to another process. */
  void detach() {
    if (session != null) throw new IllegalStateException("a session ends with its connection");
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
      close();
      return isHeld && !wasLost;
    } catch (UnavailableException outage) {
      leaveInBackground(stays);
      if (wasLost) return false;
      throw outage;
    } catch (RuntimeException | Error error) {
      close();
      if (wasLost && error instanceof LockException) return false;
      throw error;
    }
  }

  /** Sends the release until a server has replied, or the lease is over. */
  private void leaveInBackground(long stays) {
    long over = Clock.after(Math.max(deadline, Clock.now()), recipe.marginNanos());
    commands.goOn(call -> commands.retry(
        call, over, commands::report, end -> leaveOnce(call, stays, end)), this::close);
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

  /** Closes the connection of a session. */
  private void close() {
    if (session != null) session.close();
  }

  /** Tells the observer of a failure that no caller hears of. */
  void tell(String text, Throwable failure) {
    UnavailableException told = failure instanceof UnavailableException outage
        ? outage
        : new UnavailableException(text + failure.getMessage(), failure, false, "");
    Events.tell(() -> commands.observer.unavailable(told));
  }

  /** Asks the server whether this grant holds all its keys. */
  boolean isOwned() {
    return commands.ofEachKey(recipe, "CHECK", token, token).stream()
        .allMatch(left -> left instanceof Long millis && millis > 0);
  }

  String name() {
    return recipe.name();
  }

  LockLostException lostError() {
    return new LockLostException("lost before it was released: " + name());
  }

  IllegalMonitorStateException notHeld() {
    return new IllegalMonitorStateException("released or lost before: " + name());
  }
}
