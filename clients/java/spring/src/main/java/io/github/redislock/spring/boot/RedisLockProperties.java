package io.github.redislock.spring.boot;

import io.github.redislock.LockOptions;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The settings of locks. Where the server is, say {@code spring.data.redis.*}.
 *
 * @param enabled whether the application gets locks
 * @param commandTimeout the longest time of every call that doesn't wait for a lock
 * @param lease how long the others wait if this process dies
 * @param keep how long the server keeps a place in the queue without hearing of it
 * @param longestHold the longest time for which a lease is renewed
 * @param integration settings of the lock registry for Spring Integration
 * @param shedlock settings of the lock provider for ShedLock
 */
@ConfigurationProperties("redis-lock")
public record RedisLockProperties(
    @DefaultValue("true") boolean enabled,
    @DefaultValue("1s") Duration commandTimeout,
    @DefaultValue("30s") Duration lease,
    @DefaultValue("10s") Duration keep,
    @DefaultValue("24h") Duration longestHold,
    @DefaultValue Integration integration,
    @DefaultValue Shedlock shedlock) {

  /** Returns the options of locks that are asked for without options. */
  LockOptions options() {
    return LockOptions.defaults().lease(lease).keep(keep).longestHold(longestHold);
  }

  /**
   * The settings of the lock registry for Spring Integration.
   *
   * @param registryKey the first part of each key, before a colon
   */
  public record Integration(@DefaultValue("locks") String registryKey) {}

  /**
   * The settings of the lock provider for ShedLock.
   *
   * @param keyPrefix the first part of each key, before a colon
   * @param environment the second part of each key, between colons
   */
  public record Shedlock(
      @DefaultValue("job-lock") String keyPrefix, @DefaultValue("default") String environment) {}
}
