package io.github.redislock.spring.boot;

import io.github.redislock.Locks;
import io.github.redislock.spring.integration.RedisLockRegistry;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.context.annotation.Bean;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import org.springframework.integration.support.locks.LockRegistry;

/** A {@link LockRegistry} for Spring Integration. */
@AutoConfiguration(after = RedisLockAutoConfiguration.class)
@ConditionalOnClass(RenewableLockRegistry.class)
@ConditionalOnBean(Locks.class)
public class RedisLockIntegrationAutoConfiguration {
  @Bean
  @ConditionalOnMissingBean(LockRegistry.class)
  RedisLockRegistry redisLockRegistry(Locks locks, RedisLockProperties properties) {
    return new RedisLockRegistry(locks, properties.integration().registryKey());
  }
}
