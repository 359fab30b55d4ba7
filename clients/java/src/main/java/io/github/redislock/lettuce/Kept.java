package io.github.redislock.lettuce;

import io.lettuce.core.api.StatefulConnection;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** A connection that is opened when it is needed, and again after it was dropped. */
class Kept<C extends StatefulConnection<?, ?>> {
  private static final long OPENING_NANOS = TimeUnit.SECONDS.toNanos(3);

  private final Supplier<C> opened;
  private CompletableFuture<C> current;
  private long begunNanos;
  private boolean isClosed;

  Kept(Supplier<C> opened) {
    this.opened = opened;
  }

  /** Returns the connection, or its failure to open, which only the next call repeats. */
  synchronized CompletableFuture<C> get() {
    if (isClosed) return CompletableFuture.failedFuture(new IllegalStateException("these locks are closed"));
    if (current == null || current.isCompletedExceptionally()) {
      begunNanos = System.nanoTime();
      // On a thread of its own, because Lettuce blocks until the connection is open.
      current = CompletableFuture.supplyAsync(opened, work -> {
        Thread thread = new Thread(work, "redis-lock-connect");
        thread.setDaemon(true);
        thread.start();
      });
    }
    return current;
  }

  /**
   * Closes a connection that doesn't reply, unless it was replaced already. One that is just being opened
   * gets some time: on a slow machine the next one wouldn't be faster.
   */
  void drop(CompletableFuture<C> silent) {
    synchronized (this) {
      if (isClosed || current != silent) return;
      if (!silent.isDone() && System.nanoTime() - begunNanos < OPENING_NANOS) return;
      current = null;
    }
    leave(silent);
  }

  /** Drops the connection, if there is one. */
  void drop() {
    CompletableFuture<C> last;
    synchronized (this) {
      last = current;
    }
    if (last != null) drop(last);
  }

  /** Closes a dropped connection. */
  void leave(CompletableFuture<C> dropped) {
    dropped.thenAccept(C::closeAsync);
  }

  /** Notes that a command had its reply on this connection. */
  void replied(CompletableFuture<C> by) {}

  synchronized boolean isCurrent(CompletableFuture<C> connection) {
    return current == connection;
  }

  /** Returns true if a connection was open and isn't now. */
  static boolean isLost(CompletableFuture<? extends StatefulConnection<?, ?>> connection) {
    return connection.isDone() && !connection.isCompletedExceptionally() && !connection.join().isOpen();
  }

  /** Closes the connection. The future ends when it is closed. */
  CompletableFuture<?> close() {
    CompletableFuture<C> last;
    synchronized (this) {
      isClosed = true;
      last = current;
    }
    return last == null ? CompletableFuture.completedFuture(null) : last.thenCompose(C::closeAsync);
  }
}
