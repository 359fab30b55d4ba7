package io.github.redislock.spring.boot;

import io.github.redislock.Locks;
import io.github.redislock.spring.shedlock.RedisLockProvider;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.context.annotation.Bean;

/** A {@link LockProvider} for ShedLock. */
@AutoConfiguration(after = RedisLockAutoConfiguration.class)
@ConditionalOnClass(LockProvider.class)
@ConditionalOnBean(Locks.class)
public class RedisLockShedLockAutoConfiguration {
  @Bean
  @ConditionalOnMissingBean(LockProvider.class)
  RedisLockProvider redisLockProvider(Locks locks, RedisLockProperties properties) {
    RedisLockProperties.Shedlock shedlock = properties.shedlock();
    return new RedisLockProvider(locks, shedlock.environment(), shedlock.keyPrefix());
  }
}
