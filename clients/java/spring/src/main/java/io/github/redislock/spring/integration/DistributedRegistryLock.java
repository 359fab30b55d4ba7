package io.github.redislock.spring.integration;

import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import java.util.function.Supplier;
import org.springframework.integration.support.locks.DistributedLock;

/** A lock that is a DistributedLock, which Spring Integration has since version 7. */
final class DistributedRegistryLock extends RegistryLock implements DistributedLock {
  private DistributedRegistryLock(Locks locks, String key, Supplier<LockOptions> options) {
    super(locks, key, options);
  }

  /** Returns such a lock. The return type keeps this class from being loaded before its use. */
  static RegistryLock of(Locks locks, String key, Supplier<LockOptions> options) {
    return new DistributedRegistryLock(locks, key, options);
  }
}
