package io.github.redislock;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeout;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Readers and writers, and semaphores. */
class PairsTest {
  @ParameterizedTest
  @EnumSource
  void readersShareAndAWriterWaitsForAll(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisReadWriteLock pair = locks.readWriteLock("k");
      pair.readLock().lock();
      pair.readLock().lock();
      onAnotherThread(() -> {
        assertTrue(pair.readLock().tryLock());
        pair.readLock().unlock();
        assertThrows(IllegalMonitorStateException.class, pair.readLock()::unlock);
        assertFalse(pair.writeLock().tryLock());
      });
      CompletableFuture<Hold> writer = pair.writeLock().acquireAsync();
      until(() -> server.waiters("k") == 1);
      onAnotherThread(() -> assertFalse(pair.readLock().tryLock()));
      pair.readLock().unlock();
      assertEquals(1, server.waiters("k"));
      pair.readLock().unlock();
      assertTrue(writer.get(20, TimeUnit.SECONDS).release());
    }
  }

  /** A wait that would never end, because the thread itself is in the way, fails at once. */
  @ParameterizedTest
  @EnumSource
  void aReaderCantBecomeAWriter(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisReadWriteLock pair = locks.readWriteLock("k");
      RedisLock writer = pair.writeLock();
      pair.readLock().lock();
      assertThrows(DeadlockException.class, writer::lock);
      assertThrows(DeadlockException.class, writer::lockInterruptibly);
      assertFalse(writer.tryLock());
      pair.readLock().unlock();
      writer.lock();
      writer.unlock();
    }
  }

  @ParameterizedTest
  @EnumSource
  void aWriterMayReadAndReadsOn(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisReadWriteLock pair = locks.readWriteLock("k");
      Lock reader = pair.readLock();
      RedisLock writer = pair.writeLock();
      writer.lock();
      writer.lock();
      reader.lock();
      assertTrue(reader.tryLock(1, TimeUnit.SECONDS));
      reader.unlock();
      reader.lockInterruptibly();
      assertTrue(reader.tryLock());
      writer.unlock();
      CompletableFuture<Hold> other = pair.writeLock().acquireAsync();
      onAnotherThread(() -> assertFalse(reader.tryLock()));
      long fence = writer.fence();
      writer.unlock();
      assertFalse(writer.isHeldByCurrentThread());
      assertThrows(DeadlockException.class, writer::lock);
      until(() -> server.waiters("k") == 1);
      reader.unlock();
      reader.unlock();
      assertEquals(1, server.waiters("k"));
      reader.unlock();
      Hold hold = other.get(20, TimeUnit.SECONDS);
      assertTrue(hold.fence() > fence);
      assertTrue(hold.release());
      assertThrows(IllegalMonitorStateException.class, reader::unlock);
      assertEquals(0L, server.command("EXISTS", "k"));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aWriterThatReadsOnIsRenewedAndAdmitsReaders(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisReadWriteLock pair = locks.readWriteLock(LockOptions.defaults().lease(Duration.ofSeconds(3)), "k");
      pair.writeLock().lock();
      pair.readLock().lock();
      pair.writeLock().unlock();
      onAnotherThread(() -> {
        assertTrue(pair.readLock().tryLock());
        pair.readLock().unlock();
      });
      Thread.sleep(5000);
      assertFalse(pair.writeLock().tryAcquire().isPresent());
      assertEquals(1, locks.releaseAll());
      assertEquals(0L, server.command("EXISTS", "k"));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aLostWriterHasLostItsReadsToo(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisReadWriteLock pair = locks.readWriteLock("k");
      pair.writeLock().lock();
      pair.readLock().lock();
      server.command("DEL", "k");
      assertThrows(LockLostException.class, pair.writeLock()::unlock);
      assertThrows(LockLostException.class, pair.readLock()::unlock);
      until(() -> server.command("EXISTS", "k").equals(0L));
      pair.writeLock().lock();
      pair.readLock().lock();
      server.command("DEL", "k");
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      assertThrows(LockLostException.class, pair.writeLock()::unlock);
      assertThrows(LockLostException.class, pair.readLock()::unlock);
      assertFalse(pair.readLock().tryLock());
      server.command("LOCK.RELEASE", "k", "other");
      pair.readLock().lock();
      pair.readLock().unlock();
      assertEquals(0L, server.command("EXISTS", "k"));
    }
  }

  @ParameterizedTest
  @EnumSource
  void aWriterThatReadsOnGivesUpBothInAnOutage(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = new Locks(server.link(kind))) {
      RedisReadWriteLock pair = locks.readWriteLock("k");
      pair.writeLock().lock();
      pair.readLock().lock();
      server.stop();
      // The default command timeout is 1 s, and the machine may be busy.
      assertTimeout(Duration.ofSeconds(4), () -> assertThrows(UnavailableException.class, pair.writeLock()::unlock));
      assertFalse(pair.writeLock().isHeldByCurrentThread());
      assertThrows(LockLostException.class, pair.readLock()::unlock);
      server.goOn();
      until(() -> server.command("EXISTS", "k").equals(0L));
      assertThrows(IllegalMonitorStateException.class, pair.readLock()::unlock);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aSemaphoreAdmitsAsManyPermits(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisSemaphore semaphore = locks.semaphore("k", 3);
      try (Hold two = semaphore.acquire(2); Hold one = semaphore.acquire()) {
        assertTrue(one.fence() > two.fence());
        assertEquals(Optional.empty(), semaphore.tryAcquire());
        until(() -> isRefused(() -> semaphore.tryAcquire(2, Duration.ofSeconds(1))));
        CompletableFuture<Hold> next = semaphore.acquireAsync(1);
        until(() -> server.waiters("k") == 1);
        assertTrue(one.release());
        assertTrue(next.get(20, TimeUnit.SECONDS).release());
      }
      assertEquals(0L, server.command("EXISTS", "k"));
      assertThrows(IllegalArgumentException.class, () -> semaphore.acquire(4));
      LockOptions chosen = LockOptions.defaults().token("me");
      assertThrows(IllegalArgumentException.class, () -> locks.semaphore(chosen, "k", 3));
      assertThrows(IllegalArgumentException.class, () -> locks.readWriteLock(chosen, "k"));
    }
  }

  private static void onAnotherThread(Runnable work) throws Exception {
    CompletableFuture.runAsync(work).get(20, TimeUnit.SECONDS);
  }
}
