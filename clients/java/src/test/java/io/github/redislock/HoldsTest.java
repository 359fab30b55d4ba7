package io.github.redislock;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Holds, futures, semaphores, single flight, and the end of Locks, at a server. */
@ParameterizedClass
@EnumSource(TestServer.Kind.class)
class HoldsTest extends OneServer {
  HoldsTest(TestServer.Kind kind) {
    super(kind);
  }

  /** A future that ends without its grant leaves nothing. KindsTest cancels one. */
  @Test
  void aTimeoutOfTheFutureLeavesNothing() throws Exception {
    Hold hold = locks.lock("k").acquire();
    CompletableFuture<Hold> late = locks.lock("k").acquireAsync();
    CompletableFuture<Hold> cancelled = locks.lock("k").acquireAsync();
    until(() -> server.waiters("k") == 2);
    late.orTimeout(1, TimeUnit.MILLISECONDS);
    until(() -> server.waiters("k") == 1);
    cancelled.completeExceptionally(new IllegalStateException("not needed"));
    until(() -> server.waiters("k") == 0);
    assertTrue(hold.release());
    until(() -> !server.exists("k"));
  }

  /** A stage that follows a future may block, because no thread of the Redis client runs it. */
  @Test
  void whatFollowsAFutureMayBlock() throws Exception {
    Hold first = locks.lock("a").acquire();
    CompletableFuture<Long> fence = locks.lock("a").acquireAsync().thenCompose(hold -> {
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

  @Test
  void anyThreadReleasesAHoldOnce() throws Exception {
    Hold hold = locks.lock("k").acquire();
    assertTrue(CompletableFuture.supplyAsync(hold::release).get(20, TimeUnit.SECONDS));
    assertThrows(IllegalMonitorStateException.class, hold::release);
    assertThrows(IllegalMonitorStateException.class, hold::releaseAsync);
    assertThrows(IllegalMonitorStateException.class, () -> hold.extend(Duration.ofSeconds(60)));
    hold.close();
    Hold lost = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(300)), "k").acquire();
    server.command("DEL", "k");
    until(lost::isLost);
    assertThrows(LockLostException.class, lost::close);
    lost.close();
  }

  @Test
  void theLongestWaitIsAnOption() throws Exception {
    LockOptions options = LockOptions.defaults().longestWait(Duration.ofSeconds(1));
    RedisLock lock = locks.lock(options, "k");
    server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
    until(() -> isRefused(lock::acquire));
    until(() -> isRefused(() -> lock.acquireAsync().get(20, TimeUnit.SECONDS)));
    assertEquals(Optional.empty(), lock.tryAcquireAsync(Duration.ZERO).get(20, TimeUnit.SECONDS));
  }

  @Test
  void anotherProcessAdoptsAGrant() throws Exception {
    Hold hold = locks.lock("k").acquire();
    hold.detach();
    try (Locks job = server.locks(kind)) {
      Hold adopted = job.adopt(hold.token(), hold.fence(), "k").orElseThrow();
      assertEquals(hold.fence(), adopted.fence());
      assertTrue(adopted.isOwned());
      assertFalse(locks.lock("k").tryAcquire().isPresent());
      assertTrue(adopted.release());
      assertEquals(Optional.empty(), job.adopt(hold.token(), hold.fence(), "k"));
      assertThrows(IllegalArgumentException.class, () -> job.adopt("*", 1, "k"));
      assertFalse(server.exists("k"));
    }
  }

  @Test
  void oneComputesAndTheOthersRead() throws Exception {
    AtomicInteger computed = new AtomicInteger();
    AtomicReference<String> stored = new AtomicReference<>();
    Supplier<String> compute = () -> {
      until(() -> server.waiters("k") >= 2);
      computed.incrementAndGet();
      stored.set("done");
      return "done";
    };
    List<CompletableFuture<String>> all = new ArrayList<>();
    for (int caller = 0; caller < 8; caller++) {
      all.add(CompletableFuture.supplyAsync(() -> {
        try {
          return locks.once("k", () -> Optional.ofNullable(stored.get()), compute);
        } catch (InterruptedException interrupt) {
          throw new IllegalStateException(interrupt);
        }
      }, work -> new Thread(work).start()));
    }
    for (CompletableFuture<String> each : all) {
      assertEquals("done", each.get(20, TimeUnit.SECONDS));
    }
    assertEquals(1, computed.get());
  }

  @Test
  void aSemaphoreAdmitsAsManyPermits() throws Exception {
    RedisSemaphore semaphore = locks.semaphore("k", 3);
    assertEquals(3, semaphore.availablePermits());
    try (Hold two = semaphore.acquire(2); Hold one = semaphore.acquire()) {
      assertEquals(0, semaphore.availablePermits());
      assertTrue(one.fence() > two.fence());
      assertEquals(Optional.empty(), semaphore.tryAcquire());
      until(() -> isRefused(() -> semaphore.tryAcquire(2, Duration.ofSeconds(1))));
      CompletableFuture<Hold> next = semaphore.acquireAsync(1);
      until(() -> server.waiters("k") == 1);
      assertTrue(one.release());
      assertTrue(next.get(20, TimeUnit.SECONDS).release());
      assertEquals(1, semaphore.availablePermits());
    }
    assertFalse(server.exists("k"));
    assertThrows(IllegalArgumentException.class, () -> semaphore.acquire(4));
    LockOptions shared = LockOptions.defaults().shared();
    assertThrows(IllegalArgumentException.class, () -> locks.readWriteLock(shared, "k"));
  }

  @Test
  void anyClientMayHaveLocked() throws Exception {
    isLockedByOthers(locks);
  }

  @Test
  void jedisMayReadMaps() throws Exception {
    JedisClientConfig config =
        DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).build();
    HostAndPort address = new HostAndPort("127.0.0.1", server.port());
    try (Locks maps = TestServer.locks(
        TestServer.linkOf(new PooledConnectionProvider(address, config)))) {
      isLockedByOthers(maps);
      try (Hold hold = maps.semaphore("s", 3).acquire(2)) {
        assertEquals(1, maps.semaphore("s", 3).availablePermits());
      }
    }
  }

  private void isLockedByOthers(Locks locks) {
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

  @Test
  void closingEndsTheWaits() throws Exception {
    server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
    CompletableFuture<Throwable> ended = CompletableFuture.supplyAsync(() ->
        assertThrows(UnavailableException.class, locks.lock("k")::lock));
    until(() -> server.waiters("k") == 1);
    locks.close();
    assertEquals("these locks are closed", ended.get(20, TimeUnit.SECONDS).getMessage());
    assertThrows(UnavailableException.class, locks.lock("k")::tryLock);
    assertThrows(UnavailableException.class, locks.lock("k")::lock);
    until(() -> server.connections().size() <= 1);
  }

  @Test
  void aHoldReleasedLaterKeepsTheLockForThatTime() throws Exception {
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
