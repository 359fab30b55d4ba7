package io.github.redislock.spring.integration;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;
import static org.assertj.core.api.Assertions.assertThatNullPointerException;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.redislock.OneServer;
import java.time.Duration;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.util.ClassUtils;

/**
 * The registry's own type with Spring Integration 7. No signature, not even that of a lambda, has a
 * DistributedLock, so that JUnit can load this class with 6.5.
 */
class DistributedLockRegistryTest extends OneServer {
  @BeforeAll
  static void needsSpringIntegration7() {
    String type = "org.springframework.integration.support.locks.DistributedLock";
    assumeTrue(ClassUtils.isPresent(type, null));
  }

  @Test
  void aLockHasLeasesOfItsOwn() throws Exception {
    DistributedLockRegistry registry = new DistributedLockRegistry(locks, "r", 5_000);
    DistributedLock lock = registry.obtain("a");
    lock.lock(Duration.ofSeconds(50));
    assertThat(leaseMs()).isBetween(20_000L, 50_000L);
    assertThat(lock.tryLock(Duration.ofSeconds(20), Duration.ofSeconds(90))).isTrue();
    assertThat(leaseMs()).isBetween(60_000L, 90_000L);
    registry.renewLock("a", Duration.ofSeconds(200));
    assertThat(leaseMs()).isBetween(100_000L, 200_000L);
    lock.unlock();
    lock.unlock();
    String result = registry.executeLocked("a", () -> "done");
    assertThat(result).isEqualTo("done");
    assertThat(server.exists("r:a")).isFalse();
  }

  /** The margin of a long lease may be longer than the lease of a further hold. */
  @Test
  void aFurtherHoldMayBeShort() throws Exception {
    DistributedLock lock = new DistributedLockRegistry(locks, "r", 60_000).obtain("a");
    lock.lock();
    assertThat(lock.tryLock(Duration.ZERO, Duration.ofMillis(1))).isTrue();
    assertThat(leaseMs()).isGreaterThan(20_000L);
    lock.unlock();
    lock.unlock();
  }

  @Test
  void aWrongLeaseAcquiresNothing() {
    DistributedLockRegistry registry = new DistributedLockRegistry(locks, "r");
    Duration wrong = Duration.ofSeconds(-1);
    assertThatIllegalArgumentException().isThrownBy(() -> registry.obtain("a").lock(wrong));
    assertThatIllegalArgumentException()
        .isThrownBy(() -> registry.obtain("a").tryLock(Duration.ZERO, wrong));
    assertThatNullPointerException().isThrownBy(() -> registry.obtain("a").lock(null));
    assertThat(server.exists("r:a")).isFalse();
  }

  private long leaseMs() {
    return (Long) server.command("PTTL", "r:a");
  }
}
