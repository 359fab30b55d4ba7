package io.github.redislock.lettuce;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.Pool;
import io.github.redislock.spi.ServerError;
import io.lettuce.core.api.StatefulConnection;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** The connection that all commands share which the server answers at once. */
final class Shared {
  /** The time after which another connection is opened beside one that is just being opened. */
  private static final long OPENING_NANOS = TimeUnit.SECONDS.toNanos(2);

  private final Supplier<StatefulConnection<byte[], byte[]>> opened;
  private final Inspection inspection;
  private final Runnable dropped;
  /** The times of the latest replies, by server. */
  private final Map<String, Long> replies = new ConcurrentHashMap<>();
  /** For how long callers have waited since the latest reply, by server. */
  private final Map<String, Silence> silences = new ConcurrentHashMap<>();
  /** The failures since the latest reply. */
  private final AtomicInteger failures = new AtomicInteger();
  private @Nullable CompletableFuture<StatefulConnection<byte[], byte[]>> current;
  private long begunAt;
  private boolean isClosed;

  /** A look, by a connection, at what has changed at its servers. */
  interface Inspection {
    CompletableFuture<?> by(StatefulConnection<byte[], byte[]> connection);
  }

  Shared(
      Supplier<StatefulConnection<byte[], byte[]>> opened, Inspection inspection,
      Runnable dropped) {
    this.opened = opened;
    this.inspection = inspection;
    this.dropped = dropped;
  }

  /** Opens the connection, if it isn't open, before it is needed. */
  void begin() {
    opening();
  }

  /** Sends a command on the connection, which is dropped if it failed or its server is silent. */
  @Nullable Object exchange(
      Call call, long until, Pool.Exchange<StatefulConnection<byte[], byte[]>> exchange)
      throws InterruptedException {
    CompletableFuture<StatefulConnection<byte[], byte[]>> opening = opening();
    StatefulConnection<byte[], byte[]> connection = call.await(opening, until, Failures::told);
    long began = Clock.now();
    call.sends();
    try {
      Object reply = exchange.run(connection);
      answered(call);
      return reply;
    } catch (RuntimeException | Error error) {
      Throwable failure = Failures.told(error);
      if (failure instanceof ServerError reply) {
        answered(call);
        // The name of the server may lead to the new primary by now.
        if (reply.isOfReplica()) drop(opening);
      } else if (failure instanceof OutageException outage && isDead(outage, call, began)) {
        drop(opening);
      } else if (failure instanceof OutageException) {
        inspection.by(connection);
      }
      throw Pool.unchecked(failure);
    }
  }

  private void answered(Call call) {
    call.answered();
    replies.put(call.server(), Clock.now());
    silences.remove(call.server());
    failures.set(0);
  }

  /** Returns true if a connection failed twice, or callers waited long for its server in vain. */
  private boolean isDead(OutageException outage, Call call, long began) {
    if (!outage.isLate()) return failures.incrementAndGet() > 1;
    long now = Clock.now();
    long since = Math.max(began, replies.getOrDefault(call.server(), began));
    Silence silence = silences.merge(
        call.server(), new Silence(now - since, now), (known, added) -> known.until(since, now));
    return silence.nanos >= Pool.SILENCE_NANOS;
  }

  /** The time in which at least one caller waited. Several short waits make a long silence. */
  private record Silence(long nanos, long countedUntil) {
    Silence until(long since, long now) {
      return new Silence(nanos + Math.max(0, now - Math.max(since, countedUntil)), now);
    }
  }

  /** Returns the connection, or its failure to open, which the next call repeats. */
  private synchronized CompletableFuture<StatefulConnection<byte[], byte[]>> opening() {
    if (isClosed) throw OutageException.closed();
    CompletableFuture<StatefulConnection<byte[], byte[]>> known = current;
    if (known != null && isUsable(known)) return known;
    if (known != null) closeLater(known);
    begunAt = Clock.now();
    // In a thread of the library, because Lettuce blocks until the connection is open.
    current = CompletableFuture.supplyAsync(opened, Background::run);
    return current;
  }

  private boolean isUsable(CompletableFuture<StatefulConnection<byte[], byte[]>> opening) {
    if (!opening.isDone()) return Clock.now() - begunAt < OPENING_NANOS;
    return !opening.isCompletedExceptionally() && opening.join().isOpen();
  }

  private void drop(CompletableFuture<StatefulConnection<byte[], byte[]>> dead) {
    synchronized (this) {
      if (current != dead) return;
      current = null;
    }
    closeLater(dead);
    dropped.run();
  }

  /** Closes a connection after a last inspection. */
  private void closeLater(CompletableFuture<StatefulConnection<byte[], byte[]>> opening) {
    opening.thenAccept(connection ->
        inspection.by(connection).whenComplete((done, error) -> connection.closeAsync()));
  }

  /** Drops the connection after another one failed, unless its server replied on this one since. */
  void suspect(Call call, long began) {
    CompletableFuture<StatefulConnection<byte[], byte[]>> suspected;
    synchronized (this) {
      suspected = current;
    }
    boolean hasReplied = replies.getOrDefault(call.server(), Long.MIN_VALUE) >= began;
    if (suspected == null || !suspected.isDone()) return;
    if (hasReplied) suspected.thenAccept(inspection::by);
    else drop(suspected);
  }

  synchronized CompletableFuture<?> close() {
    isClosed = true;
    return current == null
        ? CompletableFuture.completedFuture(null)
        : current.thenCompose(StatefulConnection::closeAsync);
  }
}
