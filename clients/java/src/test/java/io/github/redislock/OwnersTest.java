package io.github.redislock;

import static io.github.redislock.TestServer.isGranted;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.provider.EnumSource;

/** Threads that own locks: java.util.concurrent's shape, readers and writers. */
@ParameterizedClass
@EnumSource(TestServer.Kind.class)
class OwnersTest extends OneServer {
  OwnersTest(TestServer.Kind kind) {
    super(kind);
  }

  private static void inAnotherThread(Runnable work) throws Exception {
    CompletableFuture.runAsync(work).get(20, TimeUnit.SECONDS);
  }

  @Test
  void twoLocksOfOneThreadFindEachOther() throws Exception {
    locks.lock("k").lock();
    RedisLock same = locks.lock(LockOptions.defaults().lease(Duration.ofMinutes(1)), "k");
    same.lock();
    assertTrue(same.tryLock());
    assertEquals(3, same.getHoldCount());
    long fence = same.fence();
    assertEquals(fence, locks.lock("k").fence());
    inAnotherThread(() -> {
      assertEquals(0, same.getHoldCount());
      assertFalse(same.isHeldByCurrentThread());
      assertFalse(same.tryLock());
      assertThrows(IllegalMonitorStateException.class, same::unlock);
      assertThrows(IllegalMonitorStateException.class, same::fence);
    });
    same.unlock();
    same.unlock();
    assertTrue(locks.lock("k").isHeldByCurrentThread());
    assertTrue(server.exists("k"));
    same.unlock();
    assertFalse(server.exists("k"));
    assertThrows(IllegalMonitorStateException.class, same::unlock);
    assertThrows(UnsupportedOperationException.class, same::newCondition);
  }

  @Test
  void aThreadThatWouldWaitForItselfHearsOfIt() {
    try (Locks locks = new Locks(ScriptedLink.granting())) {
      locks.lock("a").lock();
      RedisLock both = locks.lock("a", "b");
      assertThrows(DeadlockException.class, both::lock);
      assertThrows(DeadlockException.class, both::lockInterruptibly);
      locks.lock("b").lock();
      locks.lock("b").unlock();
      locks.lock("a").unlock();
      both.lock();
      both.unlock();
    }
  }

  @Test
  void lockIgnoresInterrupts() throws Exception {
    server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
    RedisLock lock = locks.lock("k");
    CompletableFuture<Boolean> locked = new CompletableFuture<>();
    Thread waiter = new Thread(() -> {
      lock.lock();
      locked.complete(Thread.interrupted());
      lock.unlock();
    });
    waiter.start();
    until(() -> server.waiters("k") == 1);
    waiter.interrupt();
    server.command("LOCK.RELEASE", "k", "other");
    assertTrue(locked.get(20, TimeUnit.SECONDS));
    waiter.join(20_000);
    assertFalse(server.exists("k"));
  }

  @Test
  void aLeaseOfTheCallIsNotRenewed() throws Exception {
    RedisLock lock = locks.lock("k");
    assertTrue(lock.tryLock(Duration.ofSeconds(20), Duration.ofMillis(800)));
    until(lock::isLost);
    assertEquals(0, lock.getHoldCount());
    assertThrows(LockLostException.class, lock::unlock);
    lock.lock(800, TimeUnit.MILLISECONDS);
    until(() -> !server.exists("k"));
    assertThrows(LockLostException.class, lock::unlock);
    assertTrue(lock.tryLock(10, 60, TimeUnit.SECONDS));
    assertTrue(lock.left().toSeconds() > 30);
    assertTrue(lock.extend(Duration.ofMinutes(2)));
    assertTrue(lock.left().toSeconds() > 60);
    lock.unlock();
  }

  @Test
  void theShortestTimeIsEnoughForAFreeLock() throws Exception {
    RedisLock lock = locks.lock("k");
    lock.lock();
    lock.unlock();
    until(() -> {
      try {
        return lock.tryLock(1, TimeUnit.NANOSECONDS);
      } catch (InterruptedException | UnavailableException busy) {
        return false;
      }
    });
    lock.unlock();
  }

  /** A loss is an IllegalMonitorStateException that says so, and the thread may lock again. */
  @Test
  void aLossIsToldAtUnlock() throws Exception {
    RedisLock lock = locks.lock(LockOptions.defaults().lease(Duration.ofSeconds(2)), "k");
    lock.lock();
    lock.lock();
    server.command("DEL", "k");
    until(lock::isLost);
    assertFalse(lock.isHeldByCurrentThread());
    assertThrows(LockLostException.class, lock::unlock);
    IllegalMonitorStateException lost =
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    assertTrue(lost.getMessage().contains("lost"), lost.getMessage());
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
    assertFalse(lock.isLost());
    lock.lock();
    server.command("DEL", "k");
    until(lock::isLost);
    // Code that asks isHeldByCurrentThread() before unlock() doesn't unlock a lost lock.
    lock.lock();
    assertEquals(1, lock.getHoldCount());
    lock.unlock();
    assertFalse(server.exists("k"));
  }

  @Test
  void readersShareAndAWriterWaitsForAll() throws Exception {
    RedisReadWriteLock pair = locks.readWriteLock("k");
    pair.readLock().lock();
    pair.readLock().lock();
    assertEquals(2, pair.readLock().getHoldCount());
    long fence = pair.readLock().fence();
    inAnotherThread(() -> {
      assertTrue(pair.readLock().tryLock());
      assertTrue(pair.readLock().fence() > fence);
      pair.readLock().unlock();
      assertThrows(IllegalMonitorStateException.class, pair.readLock()::unlock);
      assertFalse(pair.writeLock().tryLock());
    });
    assertThrows(DeadlockException.class, pair.writeLock()::lock);
    assertFalse(pair.writeLock().tryLock());
    CompletableFuture<Hold> writer = pair.writeLock().acquireAsync();
    until(() -> server.waiters("k") == 1);
    inAnotherThread(() -> assertFalse(pair.readLock().tryLock()));
    pair.readLock().unlock();
    assertEquals(1, server.waiters("k"));
    pair.readLock().unlock();
    assertTrue(writer.get(20, TimeUnit.SECONDS).release());
  }

  @Test
  void aWriterMayReadAndReadsOn() throws Exception {
    LockOptions options = LockOptions.defaults().lease(Duration.ofSeconds(2));
    RedisReadWriteLock pair = locks.readWriteLock(options, "k");
    RedisLock reader = pair.readLock();
    RedisLock writer = pair.writeLock();
    writer.lock();
    writer.lock();
    long fence = writer.fence();
    reader.lock();
    assertTrue(reader.tryLock(1, TimeUnit.SECONDS));
    assertEquals(2, reader.getHoldCount());
    reader.unlock();
    writer.unlock();
    inAnotherThread(() -> assertFalse(reader.tryLock()));
    writer.unlock();
    assertFalse(writer.isHeldByCurrentThread());
    assertEquals(fence, reader.fence());
    inAnotherThread(() -> {
      assertTrue(reader.tryLock());
      reader.unlock();
    });
    CompletableFuture<Hold> other = pair.writeLock().acquireAsync();
    until(() -> server.waiters("k") == 1);
    // The reader is renewed.
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(3);
    until(() -> System.nanoTime() > end);
    assertTrue(reader.isHeldByCurrentThread());
    assertFalse(other.isDone());
    reader.unlock();
    Hold hold = other.get(20, TimeUnit.SECONDS);
    assertTrue(hold.fence() > fence);
    assertTrue(hold.release());
    assertThrows(IllegalMonitorStateException.class, reader::unlock);
    assertFalse(server.exists("k"));
  }

  @Test
  void aLostWriterHasLostItsReads() throws Exception {
    RedisReadWriteLock pair = locks.readWriteLock("k");
    for (boolean isTaken : new boolean[] {false, true}) {
      pair.writeLock().lock();
      pair.readLock().lock();
      server.command("DEL", "k");
      if (isTaken) server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      assertThrows(LockLostException.class, pair.writeLock()::unlock);
      assertThrows(LockLostException.class, pair.readLock()::unlock);
      if (isTaken) assertFalse(pair.readLock().tryLock());
      if (isTaken) server.command("LOCK.RELEASE", "k", "other");
      until(() -> !server.exists("k"));
    }
  }

  @Test
  void aWriterThatReadsOnGivesUpBothInAnOutage() throws Exception {
    try (Locks hasty = new Locks(server.link(kind))) {
      RedisReadWriteLock pair = hasty.readWriteLock("k");
      until(() -> isGranted(pair.writeLock()));
      pair.readLock().lock();
      server.stop();
      assertThrows(UnavailableException.class, pair.writeLock()::unlock);
      assertFalse(pair.writeLock().isHeldByCurrentThread());
      server.goOn();
      until(() -> !server.exists("k"));
      assertThrows(IllegalMonitorStateException.class, pair.readLock()::unlock);
    }
  }
}
