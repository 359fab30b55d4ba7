package io.github.redislock;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Holds and their asynchronous form, the end of Locks, and texts. */
class HoldsTest {
  /** A future that ends in any other way than by its grant leaves nothing. KindsTest cancels one. */
  @ParameterizedTest
  @EnumSource
  void aTimeoutOfTheFutureLeavesNothing(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      Hold hold = locks.lock("k").acquire();
      CompletableFuture<Hold> late = locks.lock("k").acquireAsync();
      CompletableFuture<Hold> replaced = locks.lock("k").acquireAsync();
      until(() -> server.waiters("k") == 2);
      late.orTimeout(1, TimeUnit.MILLISECONDS);
      until(() -> server.waiters("k") == 1);
      replaced.completeOnTimeout(null, 1, TimeUnit.MILLISECONDS);
      until(() -> server.waiters("k") == 0);
      assertTrue(hold.release());
      until(() -> server.command("EXISTS", "k").equals(0L));
    }
  }

  /** A stage that follows a future may block, because no thread of the Redis client runs it. */
  @ParameterizedTest
  @EnumSource
  void whatFollowsAFutureMayBlock(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      Hold first = locks.lock("a").acquire();
      // Attached before the grant, so that the caller's own thread doesn't run it.
      CompletableFuture<Long> fence = locks.lock("a").acquireAsync().thenCompose(hold -> {
        assertEquals("redis-lock-events", Thread.currentThread().getName());
        locks.lock("b").lock();
        return hold.releaseAsync();
      }).thenApply(wasHeld -> {
        assertTrue(wasHeld);
        try (Hold third = locks.lock("c").tryAcquire().orElseThrow()) {
          return third.fence();
        }
      });
      until(() -> server.waiters("a") == 1);
      first.close();
      assertTrue(fence.get(20, TimeUnit.SECONDS) > 0);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aHoldIsReleasedOnce(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      Hold hold = locks.lock("k").acquire();
      CompletableFuture.runAsync(() -> assertTrue(hold.release())).get(20, TimeUnit.SECONDS);
      assertThrows(IllegalMonitorStateException.class, hold::release);
      assertThrows(IllegalMonitorStateException.class, hold::releaseAsync);
      assertThrows(IllegalMonitorStateException.class, () -> hold.extend(Duration.ofSeconds(1)));
      hold.close();
      Hold lost = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(300)), "k").acquire();
      server.command("DEL", "k");
      until(lost::isLost);
      assertFalse(lost.release());
      assertThrows(LockLostException.class, lost::close);
    }
  }

  /** The own exception of a block survives that of its lock. */
  @ParameterizedTest
  @EnumSource
  void theBlocksOwnExceptionSurvives(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      IllegalStateException own = assertThrows(IllegalStateException.class, () -> {
        try (Hold hold = locks.lock("k").acquire()) {
          server.command("DEL", "k");
          throw new IllegalStateException("boom");
        }
      });
      assertInstanceOf(LockLostException.class, own.getSuppressed()[0]);
    }
  }

  @ParameterizedTest
  @EnumSource
  void theLongestWaitIsAnOption(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisLock lock = locks.lock(LockOptions.defaults().longestWait(Duration.ofSeconds(1)), "k");
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      until(() -> isRefused(lock::acquire));
      until(() -> isRefused(() -> lock.acquireAsync().get(20, TimeUnit.SECONDS)));
      assertEquals(Optional.empty(), lock.tryAcquireAsync(Duration.ZERO).get(20, TimeUnit.SECONDS));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aLossIsToldThoughOnlyTheHoldIsKept(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      CompletableFuture<RedisLock> told = new CompletableFuture<>();
      LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(600)).onLost(told::complete);
      Hold hold = locks.lock(options, "k").acquire();
      System.gc();
      server.command("DEL", "k");
      assertEquals(hold.fence(), told.get(20, TimeUnit.SECONDS).fence());
      assertThrows(LockLostException.class, hold::close);
    }
  }

  @ParameterizedTest
  @EnumSource
  void anotherHoldEndsWithTheLongestHold(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      LockOptions options = LockOptions.defaults().longestHold(Duration.ofSeconds(2));
      RedisLock lock = locks.lock(options, "k");
      lock.lock();
      lock.lock();
      until(() -> server.command("EXISTS", "k").equals(0L));
      assertTrue(lock.isLost());
      assertThrows(LockLostException.class, lock::unlock);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aLockThatStaysIsRefusedToItsOwnObject(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisLock lock = locks.lock(LockOptions.defaults().leastHold(Duration.ofMinutes(1)), "k");
      lock.lock();
      lock.unlock();
      assertFalse(lock.tryLock());
    }
  }

  @ParameterizedTest
  @EnumSource
  void anyClientMayHaveLocked(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      isLockedByOthers(server, locks);
    }
  }

  @Test
  void jedisMayReadMaps() throws Exception {
    try (TestServer server = new TestServer()) {
      JedisClientConfig config = DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).build();
      HostAndPort address = new HostAndPort("127.0.0.1", server.port());
      Link link = new JedisLink(TestServer.jedis(new PooledConnectionProvider(address, config)));
      try (Locks locks = new Locks(link, Duration.ofSeconds(8), Observer.LOGGING)) {
        isLockedByOthers(server, locks);
      }
    }
  }

  private static void isLockedByOthers(TestServer server, Locks locks) {
    RedisLock lock = locks.lock("k", "l");
    assertFalse(lock.isLocked());
    for (String each : new String[] {"k", "l"}) {
      server.command("LOCK.ACQUIRE", each, "other", "PX", "60000", "SHARED");
      assertTrue(lock.isLocked());
      server.command("LOCK.RELEASE", each, "other");
      assertFalse(lock.isLocked());
    }
    assertTrue(lock.tryLock());
    assertTrue(lock.isLocked());
    lock.unlock();
  }

  @ParameterizedTest
  @EnumSource
  void closingEndsTheWaits(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer()) {
      Locks locks = server.locks(kind);
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      CompletableFuture<Throwable> ended = CompletableFuture.supplyAsync(() ->
          assertThrows(UnavailableException.class, locks.lock("k")::lock));
      until(() -> server.waiters("k") == 1);
      locks.close();
      assertEquals("these locks are closed", ended.get(20, TimeUnit.SECONDS).getMessage());
      assertThrows(UnavailableException.class, locks.lock("k")::tryLock);
      assertThrows(UnavailableException.class, locks.lock("k")::lock);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aFailingObserverDoesNoHarm(TestServer.Kind kind) throws Exception {
    AtomicReference<RedisLock> granted = new AtomicReference<>();
    AtomicReference<RedisLock> lost = new AtomicReference<>();
    Observer observer = new Observer() {
      @Override
      public void granted(RedisLock lock, long fence) {
        granted.set(lock);
        throw new IllegalStateException("a failing observer");
      }
    };
    try (TestServer server = new TestServer();
        Locks locks = new Locks(server.link(kind), Duration.ofSeconds(5), observer)) {
      LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(300)).onLost(each -> {
        lost.set(each);
        throw new IllegalStateException("a failing program");
      });
      RedisLock lock = locks.lock(options, "k");
      lock.lock();
      until(() -> granted.get() == lock);
      server.command("DEL", "k");
      until(() -> lost.get() == lock);
      assertThrows(LockLostException.class, lock::unlock);
      assertTrue(lock.tryLock());
    }
  }

  @ParameterizedTest
  @EnumSource
  void noTextHasTheToken(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      LockOptions options = LockOptions.defaults().token("secret-7");
      RedisLock lock = locks.lock(options, "k");
      try (Hold hold = lock.acquire()) {
        assertEquals("secret-7", hold.token());
        String texts = options + " " + lock + " " + hold + " " + locks + " " + locks.readWriteLock("k") + " "
            + locks.readWriteLock("k").readLock() + " " + locks.semaphore("k", 1);
        assertFalse(texts.contains("secret-7"), texts);
      }
      server.command("SET", "text", "1");
      RefusedException refused =
          assertThrows(RefusedException.class, () -> locks.lock(options, "text").tryLock());
      assertFalse(refused.toString().contains("secret-7"), refused.toString());
    }
  }
}
