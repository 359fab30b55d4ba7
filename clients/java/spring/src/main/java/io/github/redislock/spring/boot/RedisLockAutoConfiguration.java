package io.github.redislock.spring.boot;

import io.github.redislock.LockObserver;
import io.github.redislock.Locks;
import io.github.redislock.spi.Link;
import io.github.redislock.spring.LockTemplate;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.observation.ObservationRegistry;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.redis.connection.RedisConnectionFactory;

/**
 * {@link Locks} on the application's own {@link RedisConnectionFactory}. An application with
 * another client defines a bean of type {@link Link} instead.
 */
@AutoConfiguration(afterName = {
  "org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration",
  "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration",
  "org.springframework.boot.actuate.autoconfigure.observation.ObservationAutoConfiguration",
  // Their names since Spring Boot 4.
  "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration",
  "org.springframework.boot.micrometer.metrics.autoconfigure"
      + ".CompositeMeterRegistryAutoConfiguration",
  "org.springframework.boot.micrometer.observation.autoconfigure.ObservationAutoConfiguration",
})
@ConditionalOnProperty(name = "redis-lock.enabled", matchIfMissing = true)
@EnableConfigurationProperties(RedisLockProperties.class)
public class RedisLockAutoConfiguration {
  @Bean
  @ConditionalOnMissingBean
  @ConditionalOnBean(Link.class)
  Locks redisLocks(
      Link link, RedisLockProperties properties, ObjectProvider<LockObserver> observers) {
    LockObserver all = new Observers(observers.orderedStream().toList());
    return new Locks(link, properties.commandTimeout(), all, properties.options());
  }

  /** Logs outages, unless an observer of the application does that, or whatever it likes. */
  @Bean
  @ConditionalOnMissingBean(ignored = LockMetrics.class)
  LockObserver redisLockLogging() {
    return LockObserver.LOGGING;
  }

  @Bean
  @ConditionalOnMissingBean
  @ConditionalOnBean(Locks.class)
  LockTemplate lockTemplate(Locks locks, ObjectProvider<ObservationRegistry> observations) {
    return new LockTemplate(locks, observations.getIfUnique(() -> ObservationRegistry.NOOP));
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(RedisConnectionFactory.class)
  static class LinkConfiguration {
    @Bean(destroyMethod = "")
    @ConditionalOnMissingBean(Link.class)
    @ConditionalOnSingleCandidate(RedisConnectionFactory.class)
    LifecycleLink redisLockLink(RedisConnectionFactory factory) {
      return new LifecycleLink(() -> Links.open(factory));
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(MeterRegistry.class)
  static class MetricsConfiguration {
    @Bean
    @ConditionalOnBean(MeterRegistry.class)
    LockMetrics redisLockMetrics(MeterRegistry registry) {
      return new LockMetrics(registry);
    }
  }
}
