package io.github.redislock.spring.integration;

import io.github.redislock.Locks;
import java.time.Duration;
import java.util.concurrent.locks.Lock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Spring Integration's registry over {@link Locks}. A lock belongs to the thread that acquired it,
 * which may acquire it again. The registry returns the same lock for the same key.
 *
 * <p>A lock waits in the queue of the server. An acquire that fails throws {@code
 * CannotAcquireLockException}, also if no server replies in time. {@code unlock} throws {@link
 * IllegalStateException} for a thread that doesn't own the lock, and {@link
 * java.util.ConcurrentModificationException} after a loss.
 *
 * <p>For Spring Integration 6.5. For version 7 there is {@link DistributedLockRegistry}.
 */
@SuppressWarnings("rawtypes") // Spring Integration 6.5 has no type parameters.
public class RedisLockRegistry extends CachedLocks<Lock>
    implements ExpirableLockRegistry, RenewableLockRegistry {
  /** Makes a registry with the default options of {@code locks}, whose leases are renewed. */
  public RedisLockRegistry(Locks locks, String registryKey) {
    super(locks, registryKey);
  }

  /** Makes a registry whose locks expire after {@code expireAfterMs}, unless it has a scheduler. */
  public RedisLockRegistry(Locks locks, String registryKey, long expireAfterMs) {
    super(locks, registryKey, Duration.ofMillis(expireAfterMs));
  }

  /** Makes a registry whose locks expire after {@code expireAfter}, unless it has a scheduler. */
  public RedisLockRegistry(Locks locks, String registryKey, Duration expireAfter) {
    super(locks, registryKey, expireAfter);
  }
}
