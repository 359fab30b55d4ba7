package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Pool;
import java.lang.ref.WeakReference;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

/** Connections of a client that never fails by itself. */
class PoolTest {
  private static final Command COMMAND = Command.of("CHECK", List.of(new byte[1]), List.of("token"), 0);

  /** Done when a connection may open. */
  private volatile CompletableFuture<Object> opens = CompletableFuture.completedFuture(null);
  private volatile boolean isOpening;

  private final Pool<Object> pool = new Pool<>() {
    @Override
    protected Object open() {
      isOpening = !opens.isDone();
      opens.join();
      return new Object();
    }

    @Override
    protected boolean isOpen(Object connection) {
      return true;
    }

    @Override
    protected void close(Object connection) {}

    @Override
    protected Fault.Kind meaning(Throwable cause) {
      return Fault.Kind.OUTAGE;
    }
  };

  private Object exchange(Pool.Exchange<Object> exchange) {
    return Call.uninterruptibly(call -> pool.exchange(COMMAND, call, Clock.after(Clock.now(), 5_000_000_000L), exchange));
  }

  /** A handshake over a slow network may take longer than the limit of a call. */
  @Test
  void aConnectionThatIsPutBackIsTakenWhileAnotherOneOpens() throws Exception {
    CompletableFuture<Object> begins = new CompletableFuture<>();
    CompletableFuture<Object> ends = new CompletableFuture<>();
    CompletableFuture<Object> first = CompletableFuture.supplyAsync(() -> exchange(connection -> {
      begins.complete(connection);
      return ends.join();
    }));
    Object connection = begins.get(5, SECONDS);
    opens = new CompletableFuture<>();
    CompletableFuture<Object> second = CompletableFuture.supplyAsync(() -> exchange(taken -> taken));
    until(() -> isOpening);
    ends.complete("reply");
    assertSame(connection, second.get(3, SECONDS));
    assertEquals("reply", first.get(3, SECONDS));
    opens.complete(null);
  }

  /** A connection had a late reply, and is unused when another one fails. */
  @Test
  void nothingKeepsAConnectionThatWasClosed() {
    AtomicReference<WeakReference<Object>> late = new AtomicReference<>();
    exchange(first -> {
      assertThrows(Fault.class, () -> exchange(second -> {
        late.set(new WeakReference<>(second));
        throw Fault.late(null);
      }));
      return null;
    });
    assertThrows(Fault.class, () -> exchange(first -> {
      throw Fault.outage("lost");
    }));
    until(() -> {
      System.gc();
      return late.get().get() == null;
    });
  }
}
