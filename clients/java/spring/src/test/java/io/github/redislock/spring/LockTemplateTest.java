package io.github.redislock.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatExceptionOfType;

import io.github.redislock.LockOptions;
import io.github.redislock.LockObserver;
import io.github.redislock.Locks;
import io.github.redislock.lettuce.LettuceLink;
import io.lettuce.core.RedisClient;
import io.micrometer.observation.tck.TestObservationRegistry;
import io.micrometer.observation.tck.TestObservationRegistryAssert;
import io.micrometer.observation.tck.TestObservationRegistryAssert.TestObservationRegistryAssertReturningObservationContextAssert;
import java.io.IOException;
import java.time.Duration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LockTemplateTest {
  private static final Duration LONG = Duration.ofSeconds(20);

  private final TestObservationRegistry observations = TestObservationRegistry.create();
  private TestServer server;
  private RedisClient client;
  private Locks locks;
  private LockTemplate template;

  @BeforeEach
  void startServer() {
    server = TestServer.start();
    client = RedisClient.create("redis://127.0.0.1:" + server.port());
    // A busy machine may take its time.
    locks = new Locks(new LettuceLink(client), Duration.ofSeconds(15), LockObserver.LOGGING);
    template = new LockTemplate(locks, observations);
  }

  @AfterEach
  void closeServer() {
    locks.close();
    client.shutdown();
    server.close();
  }

  @Test
  void theWorkIsDoneUnderTheLock() throws Exception {
    long fence = template.execute("k", LONG, hold -> {
      assertThat(server.exists("k")).isTrue();
      return hold.fence();
    });
    assertThat(fence).isPositive();
    assertThat(server.exists("k")).isFalse();
    assertObserved("redis.lock.acquire")
        .hasLowCardinalityKeyValue("outcome", "granted")
        .hasHighCardinalityKeyValue("lock.key", "k")
        .hasBeenStopped();
    assertObserved("redis.lock.hold").hasHighCardinalityKeyValue("lock.key", "k").hasBeenStopped();
  }

  @Test
  void aLockThatIsHeldIsNotAcquired() {
    server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
    TestServer.await(() -> TestServer.isRefused(
        () -> template.execute("k", Duration.ofMillis(500), hold -> "never")));
    TestObservationRegistryAssert.assertThat(observations)
        .hasAnObservationWithAKeyValue("outcome", "not_acquired");
  }

  @Test
  void theExceptionOfTheWorkReleasesTheLock() {
    IOException own = new IOException("own");
    assertThatExceptionOfType(IOException.class)
        .isThrownBy(() -> template.execute("k", LONG, hold -> {
          throw own;
        }))
        .isSameAs(own);
    assertThat(server.exists("k")).isFalse();
    assertObserved("redis.lock.hold").hasError(own);
  }

  @Test
  void aTemplateHasOptions() throws Exception {
    LockOptions long_ = LockOptions.defaults().lease(Duration.ofMinutes(9));
    long leaseMs = new LockTemplate(locks, observations, long_)
        .execute("k", LONG, hold -> (Long) server.command("PTTL", "k"));
    assertThat(leaseMs).isGreaterThan(Duration.ofMinutes(8).toMillis());
  }

  private TestObservationRegistryAssertReturningObservationContextAssert assertObserved(
      String name) {
    return TestObservationRegistryAssert.assertThat(observations)
        .hasObservationWithNameEqualTo(name)
        .that();
  }
}
