package io.github.redislock.lettuce;

import io.github.redislock.spi.Pool;
import io.lettuce.core.api.StatefulConnection;
import java.util.function.Supplier;

/** Connections of the client for commands that block, and for sessions. */
final class Lent extends Pool<StatefulConnection<byte[], byte[]>> {
  private final Supplier<StatefulConnection<byte[], byte[]>> opened;

  Lent(Supplier<StatefulConnection<byte[], byte[]>> opened) {
    this.opened = opened;
  }

  @Override
  protected StatefulConnection<byte[], byte[]> open() {
    return opened.get();
  }

  @Override
  protected boolean isOpen(StatefulConnection<byte[], byte[]> connection) {
    return connection.isOpen();
  }

  @Override
  protected void close(StatefulConnection<byte[], byte[]> connection) {
    connection.closeAsync();
  }

  @Override
  protected Throwable failure(Throwable error) {
    return Failures.told(error);
  }
}
