package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** The line of a lock object, which every acquire leaves again. */
class LinesTest {
  /** A link that grants each ACQUIRE, and replies 1 to every other command. */
  private static class GrantingLink extends BareLink {
    @Override
    public CompletableFuture<Object> send(Command command, Duration limit) {
      boolean isAcquire = command.name().equals("LOCK.ACQUIRE");
      return CompletableFuture.completedFuture(isAcquire ? List.of(new byte[0], 7L) : (Object) 1L);
    }
  }

  /** The time of such a wait may be over before the thread that waits has gone on. */
  @Test
  void theShortestWaitsLeaveTheLine() throws Exception {
    try (Locks locks = new Locks(new GrantingLink(), Duration.ofSeconds(20), Observer.LOGGING)) {
      RedisLock lock = locks.lock("k");
      Hold hold = lock.tryAcquire().orElseThrow();
      List<Thread> waiting = new ArrayList<>();
      for (int number = 0; number < 8; number++) waiting.add(new Thread(() -> waitOften(lock)));
      waiting.forEach(Thread::start);
      for (Thread thread : waiting) thread.join();
      assertTrue(hold.release());
      CompletableFuture<Optional<Hold>> next = lock.tryAcquireAsync(Duration.ZERO);
      assertTrue(next.get(10, TimeUnit.SECONDS).isPresent());
    }
  }

  private static void waitOften(RedisLock lock) {
    try {
      for (int round = 0; round < 2000; round++) lock.tryLock(1, TimeUnit.NANOSECONDS);
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
    }
  }

  /** A Redis client may be unable to begin a wait. */
  @Test
  void anAcquireThatCantBeginLeavesTheLine() throws Exception {
    GrantingLink link = new GrantingLink() {
      @Override
      public Optional<Turn> turn(byte[] key, Runnable announced) {
        throw new IllegalStateException("no turns");
      }
    };
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), Observer.LOGGING)) {
      RedisLock lock = locks.lock("k");
      assertThrows(UnavailableException.class, () -> lock.acquire(Duration.ofSeconds(20)));
      assertTrue(lock.tryAcquireAsync(Duration.ZERO).get(10, TimeUnit.SECONDS).isPresent());
    }
  }
}
