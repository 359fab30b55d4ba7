package io.github.redislock;

import static io.github.redislock.spi.Clock.NEVER;

import io.github.redislock.Owners.Owned;
import io.github.redislock.spi.Call;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.jspecify.annotations.Nullable;

/**
 * A lock of all processes that use the same server: keys and options. It has no state, so all
 * threads share it, and two of the same keys and mode are the same lock.
 *
 * <p>There are two ways to own the lock:
 *
 * <ul>
 *   <li>{@code acquire} returns a {@link Hold}, which owns the lock. Whoever has the hold may
 *       release it, in any thread.
 *   <li>The methods of {@link Lock} make the thread the owner. It may acquire the lock again, and
 *       unlocks it as often. Holds count for all locks of one {@link Locks} on the same keys.
 * </ul>
 *
 * <p>Every method throws {@link UnavailableException} if no server replies in time, {@link
 * ModuleMissingException} if the server hasn't loaded redis-lock, and {@link RefusedException} for
 * any other error reply. An outage never counts as contention.
 */
public final class RedisLock implements Lock {
  final Locks locks;
  final Recipe recipe;

  RedisLock(Locks locks, Recipe recipe) {
    this.locks = locks;
    this.recipe = recipe;
  }

  // --- the thread as the owner -------------------------------------------------------------------

  /**
   * Waits for the lock without a limit. The observer hears of an outage.
   *
   * @throws DeadlockException if this thread has the lock in a mode that excludes this one
   */
  @Override
  public void lock() {
    Call.uninterruptibly(call -> own(call, NEVER));
  }

  /** Waits like {@link #lock()}. The lease isn't renewed. */
  public void lock(long lease, TimeUnit unit) {
    lock(Duration.of(lease, unit.toChronoUnit()));
  }

  /** Waits like {@link #lock()}. The lease isn't renewed. */
  public void lock(Duration lease) {
    leasing(lease).lock();
  }

  /** Waits like {@link #lock()}. An interrupt leaves neither a place nor a grant. */
  @Override
  public void lockInterruptibly() throws InterruptedException {
    Call.interruptibly(call -> own(call, NEVER));
  }

  /** Tries once. Returns false if somebody else has the lock. */
  @Override
  public boolean tryLock() {
    return Call.uninterruptibly(call -> own(call, 0));
  }

  /** Waits for the lock. Returns false if somebody else had it until the time was over. */
  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    long limit = unit.toNanos(Math.max(time, 0));
    return Call.interruptibly(call -> own(call, limit));
  }

  /** Waits like {@link #tryLock(long, TimeUnit)}. */
  public boolean tryLock(Duration wait) throws InterruptedException {
    long limit = LockOptions.nanos("limit", wait, 0);
    return Call.interruptibly(call -> own(call, limit));
  }

  /** Waits like {@link #tryLock(long, TimeUnit)}. The lease isn't renewed. */
  public boolean tryLock(long wait, long lease, TimeUnit unit) throws InterruptedException {
    return leasing(Duration.of(lease, unit.toChronoUnit())).tryLock(wait, unit);
  }

  /** Waits like {@link #tryLock(Duration)}. The lease isn't renewed. */
  public boolean tryLock(Duration wait, Duration lease) throws InterruptedException {
    return leasing(lease).tryLock(wait);
  }

  /**
   * Takes one hold of this thread off.
   *
   * @throws LockLostException if the lock was lost before. In a {@code finally} it takes the place
   *     of the exception of the body, as every exception there does; {@link Hold#close()} doesn't
   * @throws IllegalMonitorStateException if this thread doesn't hold the lock
   */
  @Override
  public void unlock() {
    if (!locks.owners.unlock(this)) throw new LockLostException("lost before unlock: " + name());
  }

  /** Not supported. */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a lock of several processes has no conditions");
  }

  /** Returns true if the current thread holds the lock, and hasn't lost it. */
  public boolean isHeldByCurrentThread() {
    return getHoldCount() > 0;
  }

  /** Returns the number of holds of the current thread; 0 after a loss. */
  public int getHoldCount() {
    Owned owned = locks.owners.find(this);
    return owned != null && owned.isHeld() ? owned.holds : 0;
  }

  /** Returns true if the current thread lost the lock, and hasn't unlocked it since. */
  public boolean isLost() {
    Owned owned = locks.owners.find(this);
    return owned != null && owned.hold.isLost();
  }

  /**
   * Returns the fencing token of the current thread's grant.
   *
   * @throws IllegalMonitorStateException if this thread doesn't hold the lock
   */
  public long fence() {
    return locks.owners.owned(this).hold.fence();
  }

  /** Returns the time until the current thread loses the lock without a renewal, or zero. */
  public Duration left() {
    return isHeldByCurrentThread() ? locks.owners.owned(this).hold.left() : Duration.ZERO;
  }

  /**
   * Lets the current thread's lease end after this time, or later. Later renewals use the new
   * length. Returns false if the lock was lost.
   *
   * @throws IllegalMonitorStateException if this thread doesn't hold the lock
   */
  public boolean extend(Duration lease) {
    return locks.owners.owned(this).hold.extend(lease);
  }

  private boolean own(Call call, long limit) throws InterruptedException {
    return locks.owners.own(this, limit, () -> granted(call, limit));
  }

  private RedisLock leasing(Duration lease) {
    LockOptions options = recipe.options().lease(lease).withoutRenewal();
    return new RedisLock(locks, Recipe.of(options, recipe.names()));
  }

  // --- the hold as the owner ---------------------------------------------------------------------

  /**
   * Waits for the lock, without a limit unless the option {@code longestWait} sets one.
   *
   * @throws NotAcquiredException if somebody else had it until that time was over
   */
  public Hold acquire() throws InterruptedException {
    return acquireWithin(recipe.options().longestWaitNanos);
  }

  /**
   * Waits for the lock.
   *
   * @throws NotAcquiredException if somebody else had it until the time was over
   */
  public Hold acquire(Duration limit) throws InterruptedException {
    return acquireWithin(LockOptions.nanos("limit", limit, 0));
  }

  /** Tries once. Returns nothing if somebody else has the lock. */
  public Optional<Hold> tryAcquire() {
    return Optional.ofNullable(Call.uninterruptibly(call -> granted(call, 0)));
  }

  /** Waits for the lock. Returns nothing if somebody else had it until the time was over. */
  public Optional<Hold> tryAcquire(Duration limit) throws InterruptedException {
    return tryWithin(LockOptions.nanos("limit", limit, 0));
  }

  /** Waits like {@link #acquire()}, in a thread of the library. Cancel the future to stop. */
  public CompletableFuture<Hold> acquireAsync() {
    return Waits.inBackground(this::acquire, Hold::releaseAsync);
  }

  /** Waits like {@link #tryAcquire(Duration)}, in a thread of the library. */
  public CompletableFuture<Optional<Hold>> tryAcquireAsync(Duration limit) {
    long nanos = LockOptions.nanos("limit", limit, 0);
    return Waits.inBackground(() -> tryWithin(nanos), late -> late.ifPresent(Hold::releaseAsync));
  }

  private Hold acquireWithin(long limit) throws InterruptedException {
    return tryWithin(limit).orElseThrow(
        () -> new NotAcquiredException("somebody else had the lock all the time: " + name()));
  }

  private Optional<Hold> tryWithin(long limit) throws InterruptedException {
    return Optional.ofNullable(Call.interruptibly(call -> granted(call, limit)));
  }

  // --- both --------------------------------------------------------------------------------------

  /** Asks the server whether any client holds one of the keys now. */
  public boolean isLocked() {
    return locks.permitsOf(recipe) > 0;
  }

  /** Returns the keys. */
  public List<String> keys() {
    return recipe.names();
  }

  /** Returns the keys, separated by commas. */
  public String name() {
    return recipe.name();
  }

  /** Returns the keys and the mode. */
  @Override
  public String toString() {
    return "RedisLock[" + name() + ", " + recipe.options() + "]";
  }

  /** Returns a hold, or null if the lock wasn't granted within the limit. */
  private @Nullable Hold granted(Call call, long limit) throws InterruptedException {
    return new Acquire(this, call, limit).run();
  }
}
