package io.github.redislock;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** The base of links without a server. It has no notifications, can't block, and has nothing to close. */
abstract class BareLink implements Link {
  @Override
  public Optional<Turn> turn(byte[] key, Runnable announced) {
    return Optional.empty();
  }

  @Override
  public CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
    throw new UnsupportedOperationException();
  }

  @Override
  public Link own() {
    return this;
  }

  @Override
  public void close() {}
}
