package io.github.redislock.spi;

import org.jspecify.annotations.Nullable;

/**
 * The connection that a grant has to itself. The server ties the grant to it, and releases the lock
 * when it closes. It is never returned to its pool, and the session ends if it fails.
 */
public final class Session implements AutoCloseable {
  private @Nullable Pool<?> pool;
  private @Nullable Object connection;
  private Runnable closing = () -> {};
  private boolean isClosed;

  /** Returns the connection; null at first, and after the lock has moved to another server. */
  @SuppressWarnings("unchecked") // The connections of a pool are of its type.
  synchronized <C> @Nullable C of(Pool<C> pool) {
    return this.pool == pool ? (C) connection : null;
  }

  /** Keeps the connection of a command, and closes the one before. Ends with one that failed. */
  synchronized <C> void keep(Pool<C> pool, C connection, boolean isReusable) {
    if (this.connection != connection) closing.run();
    this.pool = pool;
    this.connection = connection;
    closing = () -> pool.putBack(connection, false);
    if (isClosed || !isReusable) close();
  }

  /** Returns true if the server has released the lock, or will soon. */
  public synchronized boolean isClosed() {
    return isClosed;
  }

  /** Closes the connection. Otherwise the server would go on renewing the lock. */
  @Override
  public synchronized void close() {
    isClosed = true;
    closing.run();
  }
}
