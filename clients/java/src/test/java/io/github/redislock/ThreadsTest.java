package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Tests of what the conformance suite can't see: threads, interrupts, forgotten holds, many tasks. */
class ThreadsTest {
  @ParameterizedTest
  @EnumSource
  void aThreadOwnsAndReenters(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisLock lock = locks.lock("k");
      lock.lock();
      assertTrue(lock.tryLock());
      assertTrue(lock.isHeldByCurrentThread());
      assertEquals(2, lock.getHoldCount());
      assertEquals(0, CompletableFuture.supplyAsync(lock::getHoldCount).get());
      CompletableFuture<Throwable> stranger = CompletableFuture.supplyAsync(() ->
          assertThrows(IllegalMonitorStateException.class, lock::unlock));
      assertNotNull(stranger.get());
      assertFalse(CompletableFuture.supplyAsync(lock::tryLock).get());
      lock.unlock();
      assertEquals(1, lock.getHoldCount());
      lock.unlock();
      assertFalse(lock.isHeldByCurrentThread());
      assertEquals(0, lock.getHoldCount());
      assertTrue(lock.fence() > 0);
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
      assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }
  }

  @ParameterizedTest
  @EnumSource
  void anInterruptLeavesNothing(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      RedisLock lock = locks.lock("k");
      CompletableFuture<Throwable> ended = new CompletableFuture<>();
      Thread waiter = new Thread(() -> ended.complete(assertThrows(InterruptedException.class, lock::lockInterruptibly)));
      waiter.start();
      until(() -> server.waiters("k") == 1);
      waiter.interrupt();
      ended.get(20, TimeUnit.SECONDS);
      until(() -> server.waiters("k") == 0);
      server.command("LOCK.RELEASE", "k", "other");
      until(() -> server.command("EXISTS", "k").equals(0L));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aLossIsToldAtUnlock(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisLock lock = locks.lock(LockOptions.defaults().lease(Duration.ofSeconds(2)), "k");
      lock.lock();
      server.command("DEL", "k");
      until(lock::isLost);
      assertThrows(LockLostException.class, lock::unlock);
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
      lock.lock();
      lock.unlock();
    }
  }

  @ParameterizedTest
  @EnumSource
  void anotherHoldOfALostLockIsRefusedAndLeavesNothing(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisLock lock = locks.lock("k");
      lock.lock();
      server.command("DEL", "k");
      assertThrows(LockLostException.class, lock::lock);
      until(() -> server.command("EXISTS", "k").equals(0L));
      assertThrows(LockLostException.class, lock::unlock);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aForgottenHoldIsReleased(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      assertTrue(locks.lock("k").tryAcquire().isPresent());
      until(() -> {
        System.gc();
        return server.command("EXISTS", "k").equals(0L);
      });
    }
  }

  @ParameterizedTest
  @EnumSource
  void aThousandTasksAreServed(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      int tasks = kind == TestServer.Kind.LETTUCE ? 1000 : 100;
      AtomicInteger inside = new AtomicInteger();
      AtomicInteger served = new AtomicInteger();
      List<CompletableFuture<Void>> all = new ArrayList<>();
      for (int task = 0; task < tasks; task++) {
        all.add(locks.lock("k").acquireAsync().thenCompose(hold -> {
          assertEquals(1, inside.incrementAndGet());
          served.incrementAndGet();
          inside.decrementAndGet();
          return hold.releaseAsync().thenAccept(wasHeld -> assertTrue(wasHeld));
        }));
      }
      CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).get(60, TimeUnit.SECONDS);
      assertEquals(tasks, served.get());
      if (kind == TestServer.Kind.LETTUCE) assertTrue(server.connections() <= 4, server.connections() + " connections");
    }
  }
}
