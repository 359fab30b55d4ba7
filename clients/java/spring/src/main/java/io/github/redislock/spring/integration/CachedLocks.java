package io.github.redislock.spring.integration;

import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import io.github.redislock.RedisLock;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.locks.Lock;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.scheduling.TaskScheduler;
import org.springframework.util.Assert;

/**
 * The locks of a registry, which remembers the latest ones. It has the methods of Spring
 * Integration's registries, of which version 7 has a type parameter, and 6.5 has none.
 *
 * @param <L> the type of the locks
 */
abstract class CachedLocks<L extends Lock> {
  private static final int CACHE_CAPACITY = 100_000;

  private final Locks source;
  private final String registryKey;
  private final LockOptions options;
  private final Map<String, RegistryLock> locks = new LinkedHashMap<>(16, 0.75F, true);
  private int cacheCapacity = CACHE_CAPACITY;
  private volatile boolean isRenewing;

  CachedLocks(Locks locks, String registryKey) {
    this(locks, registryKey, locks.defaults(), true);
  }

  CachedLocks(Locks locks, String registryKey, Duration expireAfter) {
    this(locks, registryKey, locks.defaults().lease(expireAfter), false);
  }

  private CachedLocks(
      Locks locks, String registryKey, LockOptions options, boolean isRenewing) {
    Assert.notNull(registryKey, "'registryKey' must not be null");
    // Registries exclude each other in one thread, too.
    this.source = locks.apart();
    this.registryKey = registryKey;
    this.options = options;
    this.isRenewing = isRenewing;
  }

  /**
   * Has the leases renewed of the locks that are acquired from now on. The scheduler isn't used,
   * because {@link Locks} renews by itself.
   */
  public void setRenewalTaskScheduler(TaskScheduler renewalTaskScheduler) {
    isRenewing = true;
  }

  /** Sets the most locks that the registry remembers. Default: 100,000. */
  public synchronized void setCacheCapacity(int cacheCapacity) {
    Assert.isTrue(cacheCapacity > 0, "'cacheCapacity' must be greater than 0");
    this.cacheCapacity = cacheCapacity;
    forgetEldest(cacheCapacity);
  }

  /**
   * Returns the lock of a key.
   *
   * @throws CannotAcquireLockException if threads of this process hold as many other locks as the
   *     registry may remember, or wait for them
   */
  @SuppressWarnings("unchecked") // With Spring Integration 7 each is a DistributedLock.
  public synchronized L obtain(Object lockKey) {
    String key = keyOf(lockKey);
    RegistryLock lock = locks.get(key);
    if (lock == null) {
      makeRoom();
      lock = RegistryLock.of(source, key, this::options);
      locks.put(key, lock);
    }
    lock.used();
    return (L) lock;
  }

  private void makeRoom() {
    forgetEldest(cacheCapacity - 1);
    if (locks.size() < cacheCapacity) return;
    throw new CannotAcquireLockException("There are already " + cacheCapacity
        + " unique Redis locks acquired in the application, which is the capacity of the cache."
        + " Cannot obtain more at the moment.");
  }

  /** Forgets the eldest unused locks, until there are no more than a number. */
  private void forgetEldest(int most) {
    Iterator<RegistryLock> eldest = locks.values().iterator();
    while (locks.size() > most && eldest.hasNext()) {
      if (!eldest.next().isInUse()) eldest.remove();
    }
  }

  /**
   * Forgets each lock that no thread of this process holds or waits for, and that was last obtained
   * or acquired {@code age} ms ago or earlier.
   */
  public synchronized void expireUnusedOlderThan(long age) {
    long now = System.currentTimeMillis();
    locks.values().removeIf(lock -> now - lock.usedMs() >= age && !lock.isInUse());
  }

  /**
   * Returns the fence of the lock, which is greater than that of every earlier grant.
   *
   * @throws IllegalStateException if the current thread doesn't own the lock
   */
  public long fence(Object lockKey) {
    return owned(lockKey).fence();
  }

  /**
   * Lets the lease end after the time that the registry was made with, or later.
   *
   * @throws IllegalStateException if the current thread doesn't own the lock
   */
  public void renewLock(Object lockKey) {
    renewLock(lockKey, options.lease());
  }

  /**
   * Lets the lease end after this time, or later.
   *
   * @throws IllegalStateException if the current thread doesn't own the lock
   */
  public void renewLock(Object lockKey, Duration ttl) {
    if (owned(lockKey).extend(ttl)) return;
    throw new IllegalStateException("Could not renew mutex at " + lockKey);
  }

  private RedisLock owned(Object lockKey) {
    RedisLock lock = source.lock(options, keyOf(lockKey));
    if (lock.isHeldByCurrentThread()) return lock;
    throw new IllegalStateException("You do not own lock at " + lockKey);
  }

  private String keyOf(Object lockKey) {
    Assert.isInstanceOf(String.class, lockKey, "the key of a lock must be a String");
    return registryKey + ":" + lockKey;
  }

  private LockOptions options() {
    return isRenewing ? options : options.withoutRenewal();
  }
}
