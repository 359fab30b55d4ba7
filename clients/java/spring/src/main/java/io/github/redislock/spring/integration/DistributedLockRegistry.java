package io.github.redislock.spring.integration;

import io.github.redislock.Locks;
import java.time.Duration;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/** The registry of {@link RedisLockRegistry}, for Spring Integration 7 and later. */
public class DistributedLockRegistry extends CachedLocks<DistributedLock>
    implements ExpirableLockRegistry<DistributedLock>, RenewableLockRegistry<DistributedLock> {
  /** Makes a registry with the default options of {@code locks}, whose leases are renewed. */
  public DistributedLockRegistry(Locks locks, String registryKey) {
    super(locks, registryKey);
  }

  /** Makes a registry whose locks expire after {@code expireAfterMs}, unless it has a scheduler. */
  public DistributedLockRegistry(Locks locks, String registryKey, long expireAfterMs) {
    super(locks, registryKey, Duration.ofMillis(expireAfterMs));
  }

  /** Makes a registry whose locks expire after {@code expireAfter}, unless it has a scheduler. */
  public DistributedLockRegistry(Locks locks, String registryKey, Duration expireAfter) {
    super(locks, registryKey, expireAfter);
  }
}
