package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.BooleanSupplier;
import java.util.function.Function;

/**
 * A lock of all processes that use the same server. One object has one owner at a time: its callers
 * stand in one line, in order, and then in the queue of the server.
 *
 * <p>As a {@link Lock} it belongs to the thread that acquired it, which may acquire it again. As a
 * {@link Hold} it belongs to whoever has the hold, on any thread, which suits {@code CompletionStage}s,
 * reactive programs and virtual threads.
 *
 * <p>Every method throws {@link UnavailableException} if no server replies in time, {@link
 * ModuleMissingException} if the server hasn't loaded redis-lock, and {@link RefusedException} for any
 * other error reply. An outage never counts as contention.
 */
public sealed class RedisLock implements Lock permits RedisReadWriteLock.Writer {
  final Locks locks;
  final LockOptions options;
  final List<byte[]> keys;
  /** The acquires of this object: the first runs unless the lock is held. */
  private final Deque<Acquisition> line = new ArrayDeque<>();
  /** Threads that lost the lock and haven't called unlock since. */
  private final Set<Thread> losers = Collections.newSetFromMap(new WeakHashMap<>());
  private BooleanSupplier isOwnObstacle = () -> false;
  private Acquisition running;
  /** The releases of a chosen token that may still be sent: no acquire with it may run meanwhile. */
  private int releases;
  private Grant grant;
  private Grant latest;

  RedisLock(Locks locks, LockOptions options, List<byte[]> keys) {
    this.locks = locks;
    this.options = options;
    this.keys = keys;
  }

  /** Waits for the lock without a limit. An outage is told to the {@link Observer}. */
  @Override
  public void lock() {
    checkGrantable();
    if (!reentered()) Waits.uninterruptibly(acquire(null, Thread.currentThread()).result);
  }

  /** Waits for the lock without a limit. An interrupt leaves neither a place nor a grant. */
  @Override
  public void lockInterruptibly() throws InterruptedException {
    if (Thread.interrupted()) throw new InterruptedException();
    checkGrantable();
    if (!reentered()) grantOf(acquire(null, Thread.currentThread()));
  }

  /** Tries once. Returns false if somebody else has the lock. */
  @Override
  public boolean tryLock() {
    return reentered() || Waits.uninterruptibly(acquire(Duration.ZERO, Thread.currentThread()).result) != null;
  }

  /** Waits for the lock. Returns false if somebody else had it until the time was over. */
  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    if (Thread.interrupted()) throw new InterruptedException();
    Duration limit = Duration.ofNanos(unit.toNanos(Math.max(time, 0)));
    return reentered() || grantOf(acquire(limit, Thread.currentThread())) != null;
  }

  /**
   * Takes one hold off.
   *
   * @throws IllegalMonitorStateException if this thread doesn't own the lock
   * @throws LockLostException if it was lost before
   */
  @Override
  public void unlock() {
    Grant owned = owned();
    if (owned == null) {
      if (forgetLoss()) throw new LockLostException("lost while it was held: " + name(), null);
      throw new IllegalMonitorStateException("this thread doesn't own the lock " + name());
    }
    boolean wasHeld = Waits.uninterruptibly(release(owned));
    forgetLoss();
    if (!wasHeld) throw owned.lostError();
  }

  /** Takes one hold off a grant of this lock. Returns false if it was lost. */
  CompletableFuture<Boolean> release(Grant owned) {
    return owned.release();
  }

  /** Not supported. */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a lock of several processes has no conditions");
  }

  /**
   * Waits for the lock, without a limit unless the option {@code longestWait} sets one. Close the hold to
   * release it.
   *
   * @throws NotAcquiredException if somebody else had it until that time was over
   */
  public Hold acquire() throws InterruptedException {
    if (options.longestWait != null) return acquire(options.longestWait);
    return new Hold(grantOf(acquire(null, (Thread) null)));
  }

  /**
   * Waits for the lock. Close the hold to release it.
   *
   * @throws NotAcquiredException if somebody else had it until the time was over
   */
  public Hold acquire(Duration limit) throws InterruptedException {
    return tryAcquire(limit).orElseThrow(() -> notAcquired(limit));
  }

  private NotAcquiredException notAcquired(Duration limit) {
    return new NotAcquiredException("held by somebody else for " + limit.toMillis() + " ms: " + name(), null);
  }

  /** Tries once. Returns nothing if somebody else has the lock. */
  public Optional<Hold> tryAcquire() {
    return Optional.ofNullable(Waits.uninterruptibly(acquire(Duration.ZERO, (Thread) null).result)).map(Hold::new);
  }

  /** Waits for the lock. Returns nothing if somebody else had it until the time was over. */
  public Optional<Hold> tryAcquire(Duration limit) throws InterruptedException {
    return Optional.ofNullable(grantOf(acquire(limitOf(limit), (Thread) null))).map(Hold::new);
  }

  /**
   * Waits for the lock like {@link #acquire()}, without a thread. Cancel the future to stop waiting.
   */
  public CompletableFuture<Hold> acquireAsync() {
    Duration limit = options.longestWait;
    return holdOf(acquire(limit, (Thread) null), hold -> hold.orElseThrow(() -> notAcquired(limit)));
  }

  /** Waits for the lock without a thread. Nothing if somebody else had it until the time was over. */
  public CompletableFuture<Optional<Hold>> tryAcquireAsync(Duration limit) {
    return holdOf(acquire(limitOf(limit), (Thread) null), hold -> hold);
  }

  /** Returns the keys, separated by commas. */
  public String name() {
    return Grant.nameOf(keys);
  }

  /** Returns the fence of the latest grant, also after its loss or release; 0 before the first. */
  public synchronized long fence() {
    return latest == null ? 0 : latest.fence;
  }

  /** Returns true if the current thread owns the lock, and its lease isn't over. */
  public boolean isHeldByCurrentThread() {
    Grant owned = owned();
    return owned != null && owned.isHeld();
  }

  /** Returns the number of holds of the current thread: 0 if it doesn't own the lock, or its lease is over. */
  public int getHoldCount() {
    Grant owned = owned();
    return owned != null && owned.isHeld() ? owned.holds() : 0;
  }

  /** Returns true if the latest grant was lost. */
  public synchronized boolean isLost() {
    return latest != null && latest.isLost();
  }

  /** Returns what is left of the lease by the local clock. */
  public synchronized Duration remainingLease() {
    return grant == null ? Duration.ZERO : grant.remaining();
  }

  /** Asks the server whether this lock holds its keys now. */
  public boolean isOwned() {
    return !left().isZero();
  }

  /** Returns what is left of the lease by the server's clock; zero if this lock doesn't hold its keys. */
  public Duration left() {
    Grant held;
    synchronized (this) {
      held = grant;
    }
    if (held == null) return Duration.ZERO;
    long leftMs = Long.MAX_VALUE;
    for (Call.Reply left : ofEachKey("CHECK", held.token())) leftMs = Math.min(leftMs, left.count());
    return Duration.ofMillis(leftMs);
  }

  /** Asks the server whether any client holds one of the keys now. */
  public boolean isLocked() {
    return ofEachKey("INFO", "WAITERS", 0).stream().anyMatch(info -> hasHolders(info.value()));
  }

  private List<Call.Reply> ofEachKey(String verb, Object... arguments) {
    List<CompletableFuture<Call.Reply>> replies = new ArrayList<>();
    for (byte[] key : keys) {
      Command command = Command.of(verb, List.of(key), arguments);
      replies.add(Call.send(locks, locks.link, command, locks.commandTimeout));
    }
    return replies.stream().map(Waits::uninterruptibly).toList();
  }

  /** Returns true if a reply of LOCK.INFO, a list of names and values, has a holder. */
  private static boolean hasHolders(Object info) {
    if (!(info instanceof List<?> fields)) return false;
    for (int field = 0; field < fields.size(); field += 2) {
      boolean isHolders = fields.get(field) instanceof byte[] name && new String(name, UTF_8).equals("holders");
      if (isHolders) return fields.get(field + 1) instanceof List<?> holders && !holders.isEmpty();
    }
    return false;
  }

  /**
   * Sets the lease of the lock that this thread owns, also for later renewals. Returns false if it was
   * lost.
   */
  public boolean extend(Duration lease) {
    Duration whole = LockOptions.time("lease", lease, Duration.ofMillis(1));
    Grant owned = owned();
    if (owned == null) throw new IllegalMonitorStateException("this thread doesn't own the lock " + name());
    return Waits.uninterruptibly(owned.extend(whole));
  }

  /** Returns the keys and the state, never the token. */
  @Override
  public String toString() {
    Grant now;
    synchronized (this) {
      now = latest;
    }
    String state = now == null ? "not held" : now.isHeld() ? "held, fence " + now.fence : now.isLost() ? "lost" : "released";
    return "RedisLock[" + name() + ", " + state + "]";
  }

  /** Notes the end of an acquire, and lets the next one run. */
  void settled(Acquisition ended, Grant granted) {
    if (granted != null && granted.owner() != null) granted.heldBy(this);
    synchronized (this) {
      line.remove(ended);
      if (running == ended) running = null;
      if (granted != null) note(granted);
    }
    runNext();
  }

  /** Notes a grant, which may have ended before it arrived here. */
  private void note(Grant granted) {
    latest = granted;
    if (!granted.isEnded()) grant = granted;
    else if (granted.isLost()) noteLoss(granted);
  }

  private void noteLoss(Grant lost) {
    if (lost.owner() != null) losers.add(lost.owner());
  }

  /** Holds a grant of this thread that another lock object has passed on. */
  void adopt(Grant passed) {
    passed.heldBy(this);
    synchronized (this) {
      losers.remove(passed.owner());
      note(passed);
    }
    locks.holds(this, passed);
  }

  /** Notes the end of a grant, and lets the next acquire run once it can't be hit by the release. */
  void ended(Grant over, CompletableFuture<?> released) {
    synchronized (this) {
      releases++;
      if (grant == over) {
        grant = null;
        if (over.isLost()) noteLoss(over);
      }
    }
    // A drawn token is never used again.
    CompletableFuture<?> harmless = options.token == null ? CompletableFuture.completedFuture(null) : released;
    harmless.whenComplete((done, error) -> {
      synchronized (this) {
        releases--;
      }
      runNext();
    });
  }

  /** Returns true if an owner in this process has the lock. */
  synchronized boolean isTaken() {
    // Another thread may be noting the loss.
    return grant != null && !grant.isLost();
  }

  /** Returns true if an acquire is the first in the line, and nobody before it can get the lock any more. */
  boolean isNext(Acquisition next) {
    Acquisition before;
    synchronized (this) {
      if (isTaken() || line.peek() != next) return false;
      before = running;
    }
    return before == null || before.isOver();
  }

  private void runNext() {
    Acquisition next;
    synchronized (this) {
      if (running != null || grant != null || releases > 0) return;
      next = line.poll();
      running = next;
    }
    if (next != null) next.start();
  }

  private Acquisition acquire(Duration limit, Thread owner) {
    Grant before;
    synchronized (this) {
      before = grant;
    }
    // Its timer may be late.
    if (before != null) before.loseIfOver();
    Acquisition acquisition = new Acquisition(this, limit, owner);
    synchronized (this) {
      if (owner != null) losers.remove(owner);
      line.add(acquisition);
    }
    // Its end takes it out of the line, so it is in the line before.
    acquisition.enqueued();
    runNext();
    acquisition.tryBehindOthers();
    return acquisition;
  }

  /** Sets when a wait of the current thread would never end. */
  void neverGrantedIf(BooleanSupplier isOwnObstacle) {
    this.isOwnObstacle = isOwnObstacle;
  }

  private void checkGrantable() {
    if (isOwnObstacle.getAsBoolean()) {
      throw new DeadlockException("this thread has the other lock of the pair: " + name(), null);
    }
  }

  /** Adds a hold if the current thread owns the lock. */
  private boolean reentered() {
    Grant owned = owned();
    if (owned == null || !owned.isHeld()) return false;
    Waits.uninterruptibly(owned.holdAgain());
    return true;
  }

  /** Returns the grant of the current thread, or null. */
  synchronized Grant owned() {
    return grant != null && grant.owner() == Thread.currentThread() ? grant : null;
  }

  private synchronized boolean forgetLoss() {
    return losers.remove(Thread.currentThread());
  }

  private static Grant grantOf(Acquisition acquisition) throws InterruptedException {
    try {
      return Waits.interruptibly(acquisition.result);
    } catch (InterruptedException interrupt) {
      acquisition.cancel();
      // Granted before the cancel.
      acquisition.result.thenAccept(grant -> {
        if (grant != null) grant.releaseForNobody();
      });
      throw interrupt;
    }
  }

  private static <T> CompletableFuture<T> holdOf(Acquisition acquisition, Function<Optional<Hold>, T> shape) {
    CompletableFuture<T> hold = new CompletableFuture<>();
    // Not on a thread of the Redis client, because what follows may block.
    acquisition.result.whenCompleteAsync((grant, error) -> {
      boolean isTaken;
      try {
        isTaken = error == null
            ? hold.complete(shape.apply(Optional.ofNullable(grant).map(Hold::new)))
            : hold.completeExceptionally(error);
      } catch (NotAcquiredException none) {
        isTaken = hold.completeExceptionally(none);
      }
      if (!isTaken && grant != null) grant.releaseForNobody();
    }, Locks.EVENTS);
    // Does nothing after a grant. The program may also end the future with a timeout.
    hold.whenComplete((done, error) -> acquisition.cancel());
    return hold;
  }

  private static Duration limitOf(Duration limit) {
    return Objects.requireNonNull(limit, "limit").isZero() ? limit : LockOptions.time("limit", limit, Duration.ZERO);
  }
}
