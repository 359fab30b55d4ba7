package io.github.redislock.jedis;

import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import redis.clients.jedis.providers.ConnectionProvider;

/** The program's provider of connections, which may have to be made. All callers wait for one attempt. */
final class Opening {
  private final Supplier<ConnectionProvider> made;
  private CompletableFuture<ConnectionProvider> current;

  Opening(ConnectionProvider provider) {
    made = () -> provider;
    current = CompletableFuture.completedFuture(provider);
  }

  Opening(Supplier<ConnectionProvider> made) {
    this.made = made;
  }

  /** Returns the provider, or the failure to make it, which the next call repeats. */
  synchronized CompletableFuture<ConnectionProvider> get() {
    if (current == null || current.isCompletedExceptionally()) {
      // On a thread of its own, because a client connects while it is made.
      current = CompletableFuture.supplyAsync(made, work -> {
        Thread thread = new Thread(work, "redis-lock-jedis-connect");
        thread.setDaemon(true);
        thread.start();
      });
    }
    return current;
  }
}
