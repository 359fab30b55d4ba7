package io.github.redislock.spring.integration;

import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.scheduling.TaskScheduler;
import org.springframework.util.Assert;

/**
 * Spring Integration's registry over {@link Locks}. A lock belongs to the thread that acquired it,
 * which may acquire it again. The registry returns the same lock for the same key.
 *
 * <p>A lock waits in the queue of the server. If no server replies in time, it throws {@link
 * io.github.redislock.UnavailableException}. Its {@code unlock} throws {@link IllegalStateException} for
 * a thread that doesn't own it, and {@link java.util.ConcurrentModificationException} after a loss.
 *
 * <p>With Spring Integration 7 the locks are {@code DistributedLock}s too.
 */
@SuppressWarnings("rawtypes") // Spring Integration 6.5 has no type parameter.
public class RedisLockRegistry implements ExpirableLockRegistry, RenewableLockRegistry {
  private static final int CACHE_CAPACITY = 100_000;

  private final Locks source;
  private final String registryKey;
  private final LockOptions options;
  private final Map<String, RegistryLock> locks = new LinkedHashMap<>(16, 0.75F, true);
  private int cacheCapacity = CACHE_CAPACITY;
  private boolean isRenewing;

  /** Makes a registry with the default options of {@code locks}, whose leases are renewed. */
  public RedisLockRegistry(Locks locks, String registryKey) {
    this(locks, registryKey, locks.defaults(), true);
  }

  /** Makes a registry whose locks expire after {@code expireAfterMs}, unless it has a renewal scheduler. */
  public RedisLockRegistry(Locks locks, String registryKey, long expireAfterMs) {
    this(locks, registryKey, Duration.ofMillis(expireAfterMs));
  }

  /** Makes a registry whose locks expire after {@code expireAfter}, unless it has a renewal scheduler. */
  public RedisLockRegistry(Locks locks, String registryKey, Duration expireAfter) {
    this(locks, registryKey, locks.defaults().lease(expireAfter), false);
  }

  private RedisLockRegistry(Locks locks, String registryKey, LockOptions options, boolean isRenewing) {
    Assert.notNull(registryKey, "'registryKey' must not be null");
    this.source = locks;
    this.registryKey = registryKey;
    this.options = options;
    this.isRenewing = isRenewing;
  }

  /**
   * Has the leases of the locks renewed that the registry makes from now on. A lock that it remembers
   * already keeps its setting. The scheduler isn't used, because {@link Locks} renews by itself.
   */
  @Override
  public synchronized void setRenewalTaskScheduler(TaskScheduler renewalTaskScheduler) {
    isRenewing = true;
  }

  /** Sets the number of locks above which the registry forgets the eldest unused ones. Default: 100,000. */
  public synchronized void setCacheCapacity(int cacheCapacity) {
    this.cacheCapacity = cacheCapacity;
  }

  @Override
  public synchronized Lock obtain(Object lockKey) {
    Assert.isInstanceOf(String.class, lockKey, "the key of a lock must be a String");
    RegistryLock lock = locks.get(lockKey);
    if (lock == null) {
      forgetEldest();
      lock = lockOf((String) lockKey);
      locks.put((String) lockKey, lock);
    }
    lock.used();
    return lock.published();
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
   * Forgets each lock that no thread of this process holds or waits for, and that was last obtained or
   * acquired longer ago than {@code age} ms.
   */
  @Override
  public synchronized void expireUnusedOlderThan(long age) {
    long now = System.currentTimeMillis();
    locks.values().removeIf(lock -> now - lock.usedMs() > age && !lock.isInUse());
  }

  /**
   * Sets the whole lease again.
   *
   * @throws IllegalStateException if the current thread doesn't own the lock
   */
  @Override
  public void renewLock(Object lockKey) {
    renewLock(lockKey, options.lease());
  }

  /**
   * Sets the lease.
   *
   * @throws IllegalStateException if the current thread doesn't own the lock
   */
  // An @Override of Spring Integration 7.
  public void renewLock(Object lockKey, Duration ttl) {
    if (!owned(lockKey).extend(ttl)) throw new IllegalStateException("Could not renew mutex at " + lockKey);
  }

  private synchronized RegistryLock owned(Object lockKey) {
    RegistryLock lock = locks.get(lockKey);
    if (lock == null || !lock.isOwned()) throw new IllegalStateException("You do not own lock at " + lockKey);
    return lock;
  }

  private RegistryLock lockOf(String path) {
    String key = registryKey + ":" + path;
    return new RegistryLock(source.lock(isRenewing ? options : options.withoutRenewal(), key), key);
  }

  /** Makes room for a new lock. */
  private void forgetEldest() {
    Iterator<RegistryLock> eldest = locks.values().iterator();
    while (locks.size() >= cacheCapacity && eldest.hasNext()) {
      if (!eldest.next().isInUse()) eldest.remove();
    }
  }
}
