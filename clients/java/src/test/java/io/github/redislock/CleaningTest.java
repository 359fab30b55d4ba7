package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** A token that the program chose isn't used again before the server has forgotten its cancelled wait. */
class CleaningTest {
  /** A server that grants a wait never, and a try at once. It takes its time for a CANCEL. */
  private static final class SlowLink extends BareLink {
    private final CountDownLatch waits = new CountDownLatch(1);

    @Override
    public CompletableFuture<Object> send(Command command, Duration limit) {
      return switch (command.name()) {
        case "LOCK.ACQUIRE" -> CompletableFuture.completedFuture(List.of(new byte[0], 7L));
        case "LOCK.CANCEL" -> new CompletableFuture<>().completeOnTimeout(1L, 200, TimeUnit.MILLISECONDS);
        default -> CompletableFuture.completedFuture(1L);
      };
    }

    @Override
    public CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Runnable sending) {
      waits.countDown();
      return new CompletableFuture<>();
    }
  }

  @Test
  void aTryBehindACancelledWaitIsNoContention() throws Exception {
    SlowLink link = new SlowLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(8), Observer.LOGGING)) {
      RedisLock lock = locks.lock(LockOptions.defaults().token("chosen"), "k");
      CompletableFuture<Hold> wait = lock.acquireAsync();
      assertTrue(link.waits.await(5, TimeUnit.SECONDS));
      assertTrue(wait.cancel(false));
      assertThrows(CancellationException.class, wait::join);
      assertEquals(7, lock.tryAcquire().orElseThrow().fence());
      assertEquals(Optional.empty(), lock.tryAcquire().map(Hold::fence));
    }
  }
}
