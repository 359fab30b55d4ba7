package io.github.redislock.lettuce;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Pool;
import io.lettuce.core.api.StatefulConnection;
import java.util.function.Supplier;

/** Connections of the client for commands that block, and for sessions. */
final class Lent extends Pool<StatefulConnection<byte[], byte[]>> {
  private final Supplier<StatefulConnection<byte[], byte[]>> opened;
  private final Suspicion suspicion;

  Lent(Supplier<StatefulConnection<byte[], byte[]>> opened, Suspicion suspicion) {
    this.opened = opened;
    this.suspicion = suspicion;
  }

  /** Hears of a connection that failed on which a call sent a command at a time. */
  interface Suspicion {
    void of(Call call, long sentAt);
  }

  @Override
  protected void failed(Call call, long sentAt) {
    super.failed(call, sentAt);
    suspicion.of(call, sentAt);
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
