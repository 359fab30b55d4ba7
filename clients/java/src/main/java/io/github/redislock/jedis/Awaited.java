package io.github.redislock.jedis;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Command;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;
import redis.clients.jedis.Connection;

/**
 * A reply that may be given up. Its command is sent before that or never, so that it can't overtake the
 * commands that clean up behind it.
 */
final class Awaited extends CompletableFuture<Object> {
  private final Lock sending = new ReentrantLock();

  /** Writes the command to the socket. */
  void send(Connection connection, Command command) {
    sending.lock();
    try {
      if (isDone()) throw new CancellationException("the reply was given up");
      connection.sendCommand(() -> command.name().getBytes(UTF_8), Connections.wordsOf(command));
      // Flushes.
      connection.getMany(0);
    } finally {
      sending.unlock();
    }
  }

  @Override
  public boolean cancel(boolean mayInterruptIfRunning) {
    sending.lock();
    try {
      return super.cancel(mayInterruptIfRunning);
    } finally {
      sending.unlock();
    }
  }

  @Override
  public boolean completeExceptionally(Throwable error) {
    sending.lock();
    try {
      return super.completeExceptionally(error);
    } finally {
      sending.unlock();
    }
  }
}
