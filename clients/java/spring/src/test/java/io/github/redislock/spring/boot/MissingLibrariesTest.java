package io.github.redislock.spring.boot;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.Hold;
import io.github.redislock.LockObserver;
import io.github.redislock.Locks;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.github.redislock.spring.LockTemplate;
import io.lettuce.core.RedisClient;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import io.micrometer.observation.ObservationRegistry;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockProvider;
import org.junit.jupiter.api.Test;
import org.springframework.boot.SpringBootVersion;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.support.locks.DefaultLockRegistry;
import org.springframework.integration.support.locks.LockRegistry;

/** Applications that lack something, or have beans of their own. No server is needed. */
class MissingLibrariesTest {
  private final ApplicationContextRunner application = new ApplicationContextRunner()
      .withConfiguration(AutoConfigurations.of(RedisLockAutoConfiguration.class,
          RedisLockIntegrationAutoConfiguration.class, RedisLockShedLockAutoConfiguration.class));
  private final ApplicationContextRunner withLettuce =
      application.withBean(LettuceConnectionFactory.class, () -> new LettuceConnectionFactory("127.0.0.1", 1));

  @Test
  void theTestsRunOnTheVersionThatTheBuildNames() {
    assertThat(SpringBootVersion.getVersion()).isEqualTo(System.getProperty("spring-boot.version"));
  }

  @Test
  void anApplicationWithoutRedisHasNoLocks() {
    application.run(context -> assertThat(context).hasNotFailed()
        .doesNotHaveBean(Locks.class)
        .doesNotHaveBean(LockTemplate.class)
        .doesNotHaveBean(LockRegistry.class)
        .doesNotHaveBean(LockProvider.class));
  }

  @Test
  void beansOfTheApplicationReplaceThoseOfTheStarter() {
    RedisClient client = RedisClient.create("redis://127.0.0.1:1");
    Locks own = new Locks(new LettuceLink(client));
    LockProvider provider = configuration -> Optional.empty();
    withLettuce.withBean(Locks.class, () -> own)
        .withBean(LockTemplate.class, () -> new LockTemplate(own, ObservationRegistry.NOOP))
        .withBean(DefaultLockRegistry.class)
        .withBean(LockProvider.class, () -> provider)
        .run(context -> assertThat(context).hasSingleBean(Locks.class)
            .hasSingleBean(LockTemplate.class)
            .hasSingleBean(LockRegistry.class)
            .hasSingleBean(LockProvider.class));
    client.shutdown();
  }

  @Test
  void locksCanBeTurnedOff() {
    withLettuce.withPropertyValues("redis-lock.enabled=false")
        .run(context -> assertThat(context).hasNotFailed().doesNotHaveBean(Locks.class));
  }

  @Test
  void nothingElseIsNeeded() {
    withLettuce.withClassLoader(without("io.micrometer.core", "org.springframework.integration", "net.javacrumbs",
            "redis.clients"))
        .run(context -> assertThat(context).hasSingleBean(Locks.class).hasSingleBean(LockTemplate.class));
    application.withBean(JedisConnectionFactory.class, JedisConnectionFactory::new)
        .withClassLoader(without("io.lettuce"))
        .run(context -> assertThat(context).hasSingleBean(Locks.class));
    application.withClassLoader(without("org.springframework.data", "io.lettuce", "redis.clients"))
        .run(context -> assertThat(context).hasNotFailed().doesNotHaveBean(Locks.class));
  }

  @Test
  void anApplicationWithAnotherClientGivesItsLink() {
    RedisClient client = RedisClient.create("redis://127.0.0.1:1");
    application.withClassLoader(without("org.springframework.data"))
        .withBean(Link.class, () -> new LettuceLink(client))
        .run(context -> assertThat(context).hasSingleBean(Locks.class));
    client.shutdown();
  }

  @Test
  void anUnknownConnectionFactoryIsNamed() {
    RedisConnectionFactory unknown = org.mockito.Mockito.mock(RedisConnectionFactory.class);
    application.withBean(RedisConnectionFactory.class, () -> unknown)
        .run(context -> assertThat(context).getFailure().rootCause()
            .hasMessageContaining("define a bean of type io.github.redislock.spi.Link"));
  }

  @Test
  void twoConnectionFactoriesNeedAPrimaryOne() {
    withLettuce.withBean("second", LettuceConnectionFactory.class, () -> new LettuceConnectionFactory("127.0.0.1", 2))
        .run(context -> assertThat(context).hasNotFailed().doesNotHaveBean(Locks.class));
    withLettuce.withBean("second", LettuceConnectionFactory.class, () -> new LettuceConnectionFactory("127.0.0.1", 2),
            definition -> definition.setPrimary(true))
        .run(context -> assertThat(context).hasSingleBean(Locks.class));
  }

  @Test
  void propertiesAreTheDefaultsOfLocks() {
    withLettuce.withPropertyValues("redis-lock.lease=7s")
        .run(context -> assertThat(context.getBean(Locks.class).defaults().lease()).hasSeconds(7));
    withLettuce.run(context -> assertThat(context.getBean(RedisLockProperties.class)).isEqualTo(
        new RedisLockProperties(true, Duration.ofSeconds(1), Duration.ofSeconds(30), Duration.ofSeconds(10),
            Duration.ofHours(24), new RedisLockProperties.Integration("locks"),
            new RedisLockProperties.Shedlock("job-lock", "default"))));
    withLettuce.withPropertyValues("redis-lock.lease=0")
        .run(context -> assertThat(context).getFailure().rootCause().hasMessageContaining("lease must be"));
  }

  @Test
  void anObserverOfTheApplicationLogsItself() {
    withLettuce.run(context -> assertThat(context.getBeansOfType(LockObserver.class)).containsValue(LockObserver.LOGGING));
    withLettuce.withBean(MeterRegistry.class, SimpleMeterRegistry::new)
        .run(context -> assertThat(context.getBeansOfType(LockObserver.class)).hasSize(2).containsValue(LockObserver.LOGGING));
    withLettuce.withBean(MeterRegistry.class, SimpleMeterRegistry::new)
        .withBean("own", LockObserver.class, () -> new LockObserver() {})
        .run(context -> assertThat(context.getBeansOfType(LockObserver.class)).hasSize(2).containsKey("own")
            .doesNotContainValue(LockObserver.LOGGING));
  }

  @Test
  void theFailureOfAnObserverHarmsNoOther() {
    int[] heard = {0};
    LockObserver broken = new LockObserver() {
      @Override
      public void granted(Hold hold) {
        throw new IllegalStateException("broken");
      }
    };
    LockObserver working = new LockObserver() {
      @Override
      public void granted(Hold hold) {
        heard[0]++;
      }
    };
    new Observers(Arrays.asList(broken, working)).granted(null);
    assertThat(heard[0]).isEqualTo(1);
  }

  private static FilteredClassLoader without(String... packages) {
    return new FilteredClassLoader(packages);
  }
}
