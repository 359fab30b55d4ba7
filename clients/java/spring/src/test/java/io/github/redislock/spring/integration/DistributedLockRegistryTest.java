package io.github.redislock.spring.integration;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.redislock.LockObserver;
import io.github.redislock.Locks;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spring.TestServer;
import io.lettuce.core.RedisClient;
import java.time.Duration;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.util.ClassUtils;

/** The registry's own type with Spring Integration 7. */
class DistributedLockRegistryTest {
  @BeforeAll
  static void needsSpringIntegration7() {
    assumeTrue(ClassUtils.isPresent("org.springframework.integration.support.locks.DistributedLock", null));
  }

  @Test
  void itsLocksHaveLeasesOfTheirOwn() throws Exception {
    try (TestServer server = TestServer.start();
        RedisClient client = RedisClient.create("redis://127.0.0.1:" + server.port());
        Locks locks = new Locks(new LettuceLink(client), Duration.ofSeconds(15), LockObserver.LOGGING)) {
      DistributedLockRegistry registry = new DistributedLockRegistry(locks, "r", 5_000);
      DistributedLock lock = registry.obtain("a");
      lock.lock(Duration.ofSeconds(50));
      assertThat((Long) server.command("PTTL", "r:a")).isBetween(20_000L, 50_000L);
      assertThat(lock.tryLock(Duration.ofSeconds(20), Duration.ofSeconds(90))).isTrue();
      assertThat((Long) server.command("PTTL", "r:a")).isBetween(60_000L, 90_000L);
      registry.renewLock("a", Duration.ofSeconds(200));
      assertThat((Long) server.command("PTTL", "r:a")).isBetween(100_000L, 200_000L);
      lock.unlock();
      lock.unlock();
      assertThat(registry.<String, RuntimeException>executeLocked("a", () -> "done")).isEqualTo("done");
      assertThat(server.exists("r:a")).isFalse();
    }
  }
}
