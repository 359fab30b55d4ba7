package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Acquires that are cancelled at the moment of their grant. */
class CancelledGrantTest {
  private static final int ROUNDS = 2000;
  private static final Duration LEASE = Duration.ofMillis(300);

  /** A link that grants an ACQUIRE when the test says so, and counts the renewals. */
  private static final class GrantingLink extends BareLink {
    final AtomicInteger renewals = new AtomicInteger();
    volatile CompletableFuture<Object> acquire;

    @Override
    public CompletableFuture<Object> send(Command command, Duration limit) {
      if (command.name().equals("LOCK.EXTEND")) renewals.incrementAndGet();
      if (!command.name().equals("LOCK.ACQUIRE")) return CompletableFuture.completedFuture(1L);
      return acquire = new CompletableFuture<>();
    }
  }

  @Test
  void aCancelledGrantIsNotRenewed() throws Exception {
    GrantingLink link = new GrantingLink();
    CyclicBarrier moment = new CyclicBarrier(2);
    ExecutorService canceller = Executors.newSingleThreadExecutor();
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), Observer.LOGGING)) {
      for (int round = 0; round < ROUNDS; round++) {
        RedisLock lock = locks.lock(LockOptions.defaults().lease(LEASE), "k");
        Acquisition acquisition = new Acquisition(lock, Duration.ZERO, null);
        acquisition.start();
        CompletableFuture<Object> granting = link.acquire;
        int spins = round % 400;
        CompletableFuture<Void> cancelled = CompletableFuture.runAsync(() -> {
          meet(moment);
          for (int spin = 0; spin < spins; spin++) Thread.onSpinWait();
          acquisition.cancel();
        }, canceller);
        meet(moment);
        granting.complete(List.of(new byte[0], 7L));
        cancelled.join();
        if (!acquisition.result.isCompletedExceptionally()) acquisition.result.join().releaseAll().join();
      }
      int before = link.renewals.get();
      Thread.sleep(LEASE.toMillis());
      assertEquals(before, link.renewals.get());
    } finally {
      canceller.shutdown();
    }
  }

  private static void meet(CyclicBarrier moment) {
    try {
      moment.await();
    } catch (Exception fault) {
      throw new IllegalStateException(fault);
    }
  }
}
