package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.Test;

/** Announcements and replies come by two connections, so one can overtake the other. */
class AnnouncementTest {
  /** A server that announces the turn before its reply with the place in the queue is read. */
  private static final class HastyLink extends BareLink {
    private Runnable announced;
    private int queued;

    @Override
    public CompletableFuture<Object> send(Command command, Duration limit) {
      if (!command.name().equals("LOCK.QUEUE")) return CompletableFuture.completedFuture(1L);
      if (queued++ > 0) return CompletableFuture.completedFuture(List.of(new byte[0], 7L));
      CompletableFuture<Object> place = new CompletableFuture<>();
      CompletableFuture.delayedExecutor(50, TimeUnit.MILLISECONDS).execute(() -> {
        announced.run();
        place.complete(2L);
      });
      return place;
    }

    @Override
    public Optional<Turn> turn(byte[] key, Runnable announced) {
      this.announced = announced;
      return Optional.of(new BareTurn());
    }
  }

  /** A server that announces a turn after the first reply has come, but before the waiter has read it. */
  private static final class EarlyLink extends BareLink {
    private Runnable announced;
    private int queued;

    @Override
    public synchronized CompletableFuture<Object> send(Command command, Duration limit) {
      if (!command.name().equals("LOCK.QUEUE")) return CompletableFuture.completedFuture(1L);
      return switch (queued++) {
        case 0 -> announcedFirst();
        case 1 -> CompletableFuture.completedFuture(2L);
        default -> new CompletableFuture<>();
      };
    }

    private CompletableFuture<Object> announcedFirst() {
      CompletableFuture<Object> place = new CompletableFuture<>() {
        @Override
        public CompletableFuture<Object> whenComplete(BiConsumer<? super Object, ? super Throwable> read) {
          CompletableFuture<Object> last = super.whenComplete(read);
          // A future runs the action first that was added last.
          super.whenComplete((value, error) -> announced.run());
          return last;
        }
      };
      return place.completeOnTimeout(2L, 50, TimeUnit.MILLISECONDS);
    }

    synchronized int queued() {
      return queued;
    }

    @Override
    public Optional<Turn> turn(byte[] key, Runnable announced) {
      this.announced = announced;
      return Optional.of(new BareTurn());
    }
  }

  @Test
  void aWaiterAsksOnceAtATime() {
    EarlyLink link = new EarlyLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), Observer.LOGGING)) {
      locks.lock(LockOptions.defaults().keep(Duration.ofMillis(300)), "k").acquireAsync();
      TestServer.until(() -> link.queued() == 3);
      long enoughNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(400);
      TestServer.until(() -> link.queued() > 3 || System.nanoTime() > enoughNanos);
      assertEquals(3, link.queued());
    }
  }

  @Test
  void aTurnIsTakenThatIsAnnouncedBeforeTheReply() throws Exception {
    try (Locks locks = new Locks(new HastyLink())) {
      // Shorter than the time after which a waiter asks by itself.
      assertEquals(7, locks.lock("k").acquire(Duration.ofSeconds(2)).fence());
    }
  }
}
