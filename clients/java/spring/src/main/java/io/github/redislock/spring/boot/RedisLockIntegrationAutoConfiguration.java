package io.github.redislock.spring.boot;

import io.github.redislock.Locks;
import io.github.redislock.spring.integration.DistributedLockRegistry;
import io.github.redislock.spring.integration.RedisLockRegistry;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingClass;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/** A {@link LockRegistry} for Spring Integration. */
@AutoConfiguration(after = RedisLockAutoConfiguration.class)
@ConditionalOnClass(RenewableLockRegistry.class)
@ConditionalOnBean(Locks.class)
public class RedisLockIntegrationAutoConfiguration {
  private static final String DISTRIBUTED_LOCK =
      "org.springframework.integration.support.locks.DistributedLock";

  /** The registry for Spring Integration 7. */
  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(name = DISTRIBUTED_LOCK)
  static class DistributedConfiguration {
    @Bean
    @ConditionalOnMissingBean(LockRegistry.class)
    DistributedLockRegistry redisLockRegistry(Locks locks, RedisLockProperties properties) {
      return new DistributedLockRegistry(locks, properties.integration().registryKey());
    }
  }

  /** The registry for Spring Integration 6.5. */
  @Configuration(proxyBeanMethods = false)
  @ConditionalOnMissingClass(DISTRIBUTED_LOCK)
  static class PlainConfiguration {
    @Bean
    @ConditionalOnMissingBean(LockRegistry.class)
    RedisLockRegistry redisLockRegistry(Locks locks, RedisLockProperties properties) {
      return new RedisLockRegistry(locks, properties.integration().registryKey());
    }
  }
}
