package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
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
  void aReaderCantBecomeAWriterNorTheOtherWay(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      RedisReadWriteLock pair = locks.readWriteLock("k");
      Lock reader = pair.readLock();
      RedisLock writer = pair.writeLock();
      reader.lock();
      assertThrows(DeadlockException.class, writer::lock);
      assertThrows(DeadlockException.class, writer::lockInterruptibly);
      assertFalse(writer.tryLock());
      reader.unlock();
      writer.lock();
      writer.lock();
      assertThrows(DeadlockException.class, reader::lock);
      assertFalse(reader.tryLock(1, TimeUnit.MILLISECONDS));
      writer.unlock();
      writer.unlock();
      reader.lock();
      reader.unlock();
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
        assertEquals(Optional.empty(), semaphore.tryAcquire(2, Duration.ofSeconds(1)));
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
