package io.github.redislock.spring;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatExceptionOfType;

import io.github.redislock.LockOptions;
import io.github.redislock.OneServer;
import io.micrometer.observation.tck.TestObservationRegistry;
import io.micrometer.observation.tck.TestObservationRegistryAssert;
import io.micrometer.observation.tck.TestObservationRegistryAssert.TestObservationRegistryAssertReturningObservationContextAssert;
import java.io.IOException;
import java.time.Duration;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LockTemplateTest extends OneServer {
  private static final Duration LONG = Duration.ofSeconds(20);

  private final TestObservationRegistry observations = TestObservationRegistry.create();
  private LockTemplate template;

  @BeforeEach
  void makeTemplate() {
    template = new LockTemplate(locks, observations);
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
    until(() -> isRefused(() -> template.execute("k", Duration.ofMillis(500), hold -> "never")));
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
