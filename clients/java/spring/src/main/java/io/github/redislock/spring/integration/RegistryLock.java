package io.github.redislock.spring.integration;

import io.github.redislock.LockException;
import io.github.redislock.LockLostException;
import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.function.Supplier;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.util.ClassUtils;

/** A lock with the exceptions of Spring Integration and the methods of its DistributedLock. */
class RegistryLock implements Lock {
  private static final boolean IS_DISTRIBUTED = ClassUtils.isPresent(
      "org.springframework.integration.support.locks.DistributedLock",
      RegistryLock.class.getClassLoader());

  private final Locks locks;
  private final String key;
  private final Supplier<LockOptions> options;
  /** The threads that hold the lock or are in an acquire. */
  private final Set<Thread> users = ConcurrentHashMap.newKeySet();
  private volatile long usedMs;

  RegistryLock(Locks locks, String key, Supplier<LockOptions> options) {
    this.locks = locks;
    this.key = key;
    this.options = options;
  }

  /** Returns a lock, which is a DistributedLock if there is that type. */
  static RegistryLock of(Locks locks, String key, Supplier<LockOptions> options) {
    return IS_DISTRIBUTED
        ? DistributedRegistryLock.of(locks, key, options)
        : new RegistryLock(locks, key, options);
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
    users.removeIf(thread -> !thread.isAlive());
    return !users.isEmpty();
  }

  @Override
  public void lock() {
    acquired(options.get(), RegistryLock::locked);
  }

  /** Waits for the lock without a limit. Its lease is at least this time. */
  public void lock(Duration ttl) {
    acquired(options.get().lease(ttl), RegistryLock::locked);
  }

  private static boolean locked(RedisLock lock) {
    lock.lock();
    return true;
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    acquired(options.get(), lock -> {
      lock.lockInterruptibly();
      return true;
    });
  }

  @Override
  public boolean tryLock() {
    return acquired(options.get(), RedisLock::tryLock);
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return acquired(options.get(), lock -> lock.tryLock(time, unit));
  }

  /** Waits for the lock. Its lease is at least {@code ttl}. */
  public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
    long wait = TimeUnit.NANOSECONDS.convert(waitTime);
    return acquired(options.get().lease(ttl), lock -> lock.tryLock(wait, TimeUnit.NANOSECONDS));
  }

  private interface Acquire<X extends Exception> {
    boolean run(RedisLock lock) throws X;
  }

  private <X extends Exception> boolean acquired(LockOptions with, Acquire<X> acquire) throws X {
    RedisLock lock = locks.lock(with, key);
    users.add(Thread.currentThread());
    try {
      return acquire.run(lock) && hasWholeLease(lock, with.lease());
    } catch (LockException failure) {
      throw new CannotAcquireLockException("Failed to lock mutex at " + key, failure);
    } catch (LockLostException lost) {
      throw expired(lost);
    } finally {
      used();
      checkUser(lock);
    }
  }

  /** Begins the lease of a further hold of the thread anew, or takes that hold off. */
  private static boolean hasWholeLease(RedisLock lock, Duration lease) {
    if (lock.getHoldCount() < 2 || lease.compareTo(lock.left()) <= 0) return true;
    boolean isExtended = false;
    try {
      isExtended = lock.extend(lease);
    } finally {
      if (!isExtended) lock.unlock();
    }
    return isExtended;
  }

  @Override
  public void unlock() {
    RedisLock lock = locks.lock(options.get(), key);
    try {
      lock.unlock();
    } catch (LockLostException lost) {
      throw expired(lost);
    } catch (IllegalMonitorStateException stranger) {
      throw new IllegalStateException("You do not own lock at " + key, stranger);
    } finally {
      checkUser(lock);
    }
  }

  /** Forgets the current thread, unless it holds the lock. */
  private void checkUser(RedisLock lock) {
    if (!lock.isHeldByCurrentThread()) users.remove(Thread.currentThread());
  }

  private static ConcurrentModificationException expired(LockLostException lost) {
    return new ConcurrentModificationException("Lock was released in the store due to expiration."
        + " Somebody else may have changed what it protects.", lost);
  }

  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a lock of several processes has no conditions");
  }

  @Override
  public String toString() {
    return "RegistryLock[" + key + "]";
  }
}
