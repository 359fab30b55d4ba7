package io.github.redislock.lettuce;

import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Pool;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisCommandTimeoutException;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.RedisException;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.PartitionSelectorException;
import io.lettuce.core.cluster.UnknownPartitionException;
import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;

/** Connections of a Lettuce client. One of a cluster leads to all nodes. */
final class Connections extends Pool<StatefulConnection<byte[], byte[]>> {
  private final Supplier<StatefulConnection<byte[], byte[]>> opened;
  private final Function<StatefulConnection<byte[], byte[]>, CompletableFuture<Void>> closing;
  /** Done when the connections are closed that were to be closed so far. */
  private CompletableFuture<Void> closed = CompletableFuture.completedFuture(null);

  Connections(
      Supplier<StatefulConnection<byte[], byte[]>> opened,
      Function<StatefulConnection<byte[], byte[]>, CompletableFuture<Void>> closing) {
    this.opened = opened;
    this.closing = closing;
  }

  /** Opens a connection without the client's timeout, because each call has its own. */
  @Override
  protected StatefulConnection<byte[], byte[]> open() {
    StatefulConnection<byte[], byte[]> connection = opened.get();
    connection.setTimeout(Duration.ZERO);
    return connection;
  }

  @Override
  protected boolean isOpen(StatefulConnection<byte[], byte[]> connection) {
    return connection.isOpen();
  }

  @Override
  protected synchronized void close(StatefulConnection<byte[], byte[]> connection) {
    closed = CompletableFuture.allOf(closed, closing.apply(connection));
  }

  /** Waits a little, because the shutdown of a client warns of connections being closed. */
  synchronized void awaitClosed() {
    closed.exceptionally(error -> null).completeOnTimeout(null, 500, TimeUnit.MILLISECONDS).join();
  }

  @Override
  protected Fault.Kind meaning(Throwable cause) {
    if (cause instanceof RedisCommandExecutionException) return Fault.Kind.REPLY;
    if (cause instanceof RedisCommandTimeoutException) return Fault.Kind.LATE;
    // A closed connection and a full queue are bare RedisExceptions. A connection that is being
    // closed cancels its commands.
    boolean isOutage = cause instanceof CancellationException
        || cause instanceof RedisConnectionException
        || cause instanceof PartitionSelectorException
        || cause instanceof UnknownPartitionException
        || cause instanceof IOException
        || cause.getClass() == RedisException.class;
    return isOutage ? Fault.Kind.OUTAGE : Fault.Kind.OTHER;
  }
}
