package io.github.redislock;

import io.github.redislock.spi.Link.Turn;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** A turn that is never announced. */
class BareTurn implements Turn {
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
}
