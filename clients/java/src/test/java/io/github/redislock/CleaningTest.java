package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.ServerError;
import java.time.Duration;
import java.util.ArrayList;
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
    public CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
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
      assertThrows(NotAcquiredException.class, () -> lock.acquire(Duration.ofMillis(50)));
    }
  }

  /** A server that replies to LOCK.CHECK alone. */
  private static final class SilentLink extends BareLink {
    @Override
    public CompletableFuture<Object> send(Command command, Duration limit) {
      return command.name().equals("LOCK.CHECK") ? CompletableFuture.completedFuture(0L) : new CompletableFuture<>();
    }
  }

  /** Nobody else has the lock, so the time that the clean-up takes is an outage. */
  @Test
  void aTryBehindAnEndlessCleanUpIsNoContention() {
    try (Locks locks = new Locks(new SilentLink(), Duration.ofMillis(300), Observer.LOGGING)) {
      RedisLock lock = locks.lock(LockOptions.defaults().token("chosen"), "k");
      assertThrows(UnavailableException.class, lock::tryAcquire);
      assertThrows(UnavailableException.class, lock::tryAcquire);
    }
  }

  /** A server that grants nothing, and refuses LOCK.CANCEL. */
  private static final class RefusingLink extends BareLink {
    private final List<String> sent = new ArrayList<>();
    @Override
    public synchronized CompletableFuture<Object> send(Command command, Duration limit) {
      sent.add(command.name());
      if (command.name().equals("LOCK.QUEUE")) return CompletableFuture.completedFuture(2L);
      if (!command.name().equals("LOCK.CANCEL")) return CompletableFuture.completedFuture(1L);
      return CompletableFuture.failedFuture(new ServerError("NOPERM no right to run LOCK.CANCEL", null));
    }

    synchronized List<String> sent() {
      return List.copyOf(sent);
    }

    @Override
    public Optional<Turn> turn(byte[] key, Runnable announced) {
      return Optional.of(new BareTurn());
    }
  }

  @Test
  void theReleaseFollowsARefusedCancel() {
    RefusingLink link = new RefusingLink();
    CompletableFuture<UnavailableException> told = new CompletableFuture<>();
    Observer observer = new Observer() {
      @Override
      public void unavailable(UnavailableException outage) {
        told.complete(outage);
      }
    };
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), observer)) {
      CompletableFuture<Hold> wait = locks.lock("k").acquireAsync();
      until(() -> link.sent().contains("LOCK.QUEUE"));
      wait.cancel(false);
      until(() -> link.sent().contains("LOCK.RELEASE"));
      until(told::isDone);
      assertTrue(told.join().getMessage().contains("NOPERM"), told.join().getMessage());
    }
  }

  @Test
  void aRefusedCancelIsNoOutage() {
    try (Locks locks = new Locks(new RefusingLink(), Duration.ofSeconds(20), Observer.LOGGING)) {
      assertThrows(RefusedException.class, () -> locks.lock("k").acquire(Duration.ofMillis(50)));
    }
  }
}
