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
import java.util.function.Consumer;
import java.util.function.Supplier;

/** Connections of a Lettuce client. One of a cluster leads to all nodes. */
final class Connections extends Pool<StatefulConnection<byte[], byte[]>> {
  private final Supplier<StatefulConnection<byte[], byte[]>> opened;
  private final Consumer<StatefulConnection<byte[], byte[]>> closing;

  Connections(
      Supplier<StatefulConnection<byte[], byte[]>> opened,
      Consumer<StatefulConnection<byte[], byte[]>> closing) {
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
  protected void close(StatefulConnection<byte[], byte[]> connection) {
    closing.accept(connection);
  }

  @Override
  protected Fault meaning(Throwable cause) {
    if (cause instanceof RedisCommandExecutionException) return Fault.REPLY;
    if (cause instanceof RedisCommandTimeoutException) return Fault.LATE;
    // A closed connection and a full queue are bare RedisExceptions. A connection that is being
    // closed cancels its commands.
    boolean isOutage = cause instanceof CancellationException
        || cause instanceof RedisConnectionException
        || cause instanceof PartitionSelectorException
        || cause instanceof UnknownPartitionException
        || cause instanceof IOException
        || cause.getClass() == RedisException.class;
    return isOutage ? Fault.OUTAGE : Fault.OTHER;
  }
}
