package io.github.redislock.spring.integration;

import io.github.redislock.LockException;
import io.github.redislock.LockLostException;
import io.github.redislock.LockOptions;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/** A lock with the exceptions of Spring Integration, and with the methods of its DistributedLock. */
final class RegistryLock implements Lock {
  private final RedisLock lock;
  private final String key;
  private final Lock published = DistributedLocks.published(this);
  /** The threads that are in an acquire. */
  private final AtomicInteger acquiring = new AtomicInteger();
  private volatile long usedMs;

  RegistryLock(RedisLock lock, String key) {
    this.lock = lock;
    this.key = key;
  }

  /** Returns the form of this lock that programs get. */
  Lock published() {
    return published;
  }

  /** Returns the time at which the lock was obtained or acquired last. */
  long usedMs() {
    return usedMs;
  }

  void used() {
    usedMs = System.currentTimeMillis();
  }

  /** Returns true if a thread of this process holds the lock or waits for it. */
  boolean isInUse() {
    return acquiring.get() > 0 || !lock.remainingLease().isZero();
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
    acquired(() -> {
      lock.lock();
      return true;
    });
  }

  /** Waits for the lock without a limit, and sets its lease. */
  public void lock(Duration ttl) {
    check(ttl);
    lock();
    lease(ttl);
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    acquired(() -> {
      lock.lockInterruptibly();
      return true;
    });
  }

  @Override
  public boolean tryLock() {
    return acquired(lock::tryLock);
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return acquired(() -> lock.tryLock(time, unit));
  }

  /** Waits for the lock, and sets its lease. Returns false if it is held until the time is over. */
  public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
    check(ttl);
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

  private interface Acquire<X extends Exception> {
    boolean run() throws X;
  }

  private <X extends Exception> boolean acquired(Acquire<X> acquire) throws X {
    acquiring.incrementAndGet();
    try {
      return acquire.run();
    } finally {
      used();
      acquiring.decrementAndGet();
    }
  }

  /** Throws for a wrong lease, before the lock is acquired. */
  private static void check(Duration ttl) {
    LockOptions.defaults().lease(ttl);
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
