package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
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
      return Optional.of(new Turn() {
        @Override
        public List<byte[]> words() {
          return List.of();
        }

        @Override
        public CompletableFuture<Void> listening() {
          return CompletableFuture.completedFuture(null);
        }

        @Override
        public void close() {}
      });
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
