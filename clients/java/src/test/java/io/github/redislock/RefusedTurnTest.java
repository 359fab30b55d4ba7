package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.ServerError;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;

/** A subscription that the server refuses while LOCK.QUEUE, which may get a grant, is under way. */
class RefusedTurnTest {
  private static final class RefusingLink extends BareLink {
    final CompletableFuture<Void> listening = new CompletableFuture<>();
    private final List<String> sent = new ArrayList<>();

    @Override
    public synchronized CompletableFuture<Object> send(Command command, Duration limit) {
      sent.add(command.name());
      if (command.name().equals("LOCK.QUEUE")) return new CompletableFuture<>();
      return CompletableFuture.completedFuture(1L);
    }

    synchronized List<String> sent() {
      return List.copyOf(sent);
    }

    @Override
    public Optional<Turn> turn(byte[] key, Runnable announced) {
      return Optional.of(new BareTurn() {
        @Override
        public CompletableFuture<Void> listening() {
          return listening;
        }
      });
    }
  }

  @Test
  void itsPlaceAndItsGrantAreGivenBack() {
    RefusingLink link = new RefusingLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), Observer.LOGGING)) {
      CompletableFuture<Hold> wait = locks.lock("k").acquireAsync();
      until(() -> link.sent().equals(List.of("LOCK.QUEUE")));
      link.listening.completeExceptionally(new ServerError("NOPERM no right to subscribe", null));
      assertInstanceOf(RefusedException.class, assertThrows(CompletionException.class, wait::join).getCause());
      until(() -> link.sent().size() == 3);
      assertEquals(List.of("LOCK.QUEUE", "LOCK.CANCEL", "LOCK.RELEASE"), link.sent());
    }
  }
}
