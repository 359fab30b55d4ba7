package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.lettuce.LettuceLink;
import io.lettuce.core.RedisClient;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Options of all locks of an object, and of the end of a hold. */
class OptionsTest {
  @Test
  void locksWithoutOptionsHaveTheDefaultsOfTheirLocks() {
    LockOptions defaults = LockOptions.defaults().lease(Duration.ofSeconds(7)).shared();
    RedisClient client = RedisClient.create("redis://localhost:1");
    LettuceLink link = new LettuceLink(client);
    try (Locks locks = new Locks(link, Duration.ofSeconds(1), LockObserver.LOGGING, defaults)) {
      assertEquals("shared, lease PT7S", locks.lock("k").recipe.options().toString());
      assertEquals("exclusive, lease PT30S", locks.lock(LockOptions.defaults(), "k").recipe.options().toString());
    } finally {
      client.shutdown();
    }
  }

  @Test
  void theLongestHoldLimitsRenewedLeasesOnly() {
    LockOptions options = LockOptions.defaults().lease(Duration.ofHours(48));
    long longest = Duration.ofHours(24).plusSeconds(1).toMillis();
    assertEquals(longest, options.firstLeaseMs());
    assertEquals(2 * longest - 2000, options.withoutRenewal().firstLeaseMs());
    assertEquals(longest, options.withoutRenewal().session().firstLeaseMs());
  }

  @Test
  void theMarginIsATenthOfTheLeaseAndAtMostASecond() {
    LockOptions options = LockOptions.defaults();
    assertEquals(1000, options.marginOrDefaultMs());
    assertEquals(40, options.lease(Duration.ofMillis(400)).marginOrDefaultMs());
  }

  @ParameterizedTest
  @EnumSource
  void aHoldReleasedLaterKeepsTheLockForThatTime(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      Hold hold = locks.lock("k").tryAcquire().orElseThrow();
      long begunNanos = System.nanoTime();
      assertTrue(hold.releaseAfter(Duration.ofMillis(600)));
      assertFalse(hold.isLost());
      Hold next = locks.lock("k").acquire(Duration.ofSeconds(10));
      assertTrue(System.nanoTime() - begunNanos >= TimeUnit.MILLISECONDS.toNanos(600));
      server.command("DEL", "k");
      assertFalse(next.releaseAfter(Duration.ofMillis(600)));
    }
  }
}
