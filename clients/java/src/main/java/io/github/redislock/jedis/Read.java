package io.github.redislock.jedis;

import java.io.IOException;
import java.nio.channels.spi.AbstractInterruptibleChannel;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** A read of a connection, which an interrupt closes, because nothing else ends such a read. */
final class Read extends AbstractInterruptibleChannel {
  private final Runnable close;

  Read(Runnable close) {
    this.close = close;
  }

  @Override
  protected void implCloseChannel() {
    close.run();
  }

  @Nullable Object of(Supplier<@Nullable Object> read) throws InterruptedException {
    boolean isRead = false;
    try {
      begin();
      try {
        Object reply = read.get();
        isRead = true;
        return reply;
      } finally {
        end(isRead);
      }
    } catch (IOException interrupt) {
      Thread.interrupted();
      throw new InterruptedException();
    }
  }
}
