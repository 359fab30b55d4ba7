package io.github.redislock.spring.integration;

import io.github.redislock.LockException;
import io.github.redislock.LockLostException;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/** A lock with the exceptions of Spring Integration, and with the methods of its DistributedLock. */
final class RegistryLock implements Lock {
  private final RedisLock lock;
  private final String key;
  private final Lock published = DistributedLocks.published(this);
  private volatile long acquiredMs;

  RegistryLock(RedisLock lock, String key) {
    this.lock = lock;
    this.key = key;
  }

  /** Returns the form of this lock that programs get. */
  Lock published() {
    return published;
  }

  /** Returns the time of the last acquire, 0 before the first. */
  long acquiredMs() {
    return acquiredMs;
  }

  boolean isHeld() {
    return !lock.remainingLease().isZero();
  }

  boolean isOwned() {
    return lock.isHeldByCurrentThread();
  }

  long fence() {
    return lock.fence();
  }

  boolean extend(Duration ttl) {
    return lock.extend(ttl);
  }

  @Override
  public void lock() {
    lock.lock();
    acquired();
  }

  /** Waits for the lock without a limit, and sets its lease. */
  public void lock(Duration ttl) {
    lock();
    lease(ttl);
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    lock.lockInterruptibly();
    acquired();
  }

  @Override
  public boolean tryLock() {
    return lock.tryLock() && acquired();
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return lock.tryLock(time, unit) && acquired();
  }

  /** Waits for the lock, and sets its lease. Returns false if it is held until the time is over. */
  public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
    if (!tryLock(waitTime.toMillis(), TimeUnit.MILLISECONDS)) return false;
    lease(ttl);
    return true;
  }

  @Override
  public void unlock() {
    try {
      lock.unlock();
    } catch (IllegalMonitorStateException stranger) {
      throw new IllegalStateException("You do not own lock at " + key, stranger);
    } catch (LockLostException lost) {
      throw lost(lost);
    }
  }

  @Override
  public Condition newCondition() {
    return lock.newCondition();
  }

  @Override
  public String toString() {
    return lock.toString();
  }

  private boolean acquired() {
    acquiredMs = System.currentTimeMillis();
    return true;
  }

  private void lease(Duration ttl) {
    try {
      if (lock.extend(ttl)) return;
    } catch (LockException unextended) {
      lock.unlock();
      throw unextended;
    }
    throw lost(null);
  }

  private static ConcurrentModificationException lost(Throwable cause) {
    return new ConcurrentModificationException("Lock was released in the store due to expiration."
        + " Somebody else may have changed what it protects.", cause);
  }
}
