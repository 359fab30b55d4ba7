package io.github.redislock.spi;

import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The connections of a session, which stay out of their pool while the grant is held.
 *
 * <p>The server ties the grant to the connection of the latest EXTEND, and releases the lock when
 * that one closes. A command without a reply may arrive late and move the tie back. So its
 * connection stays open for a lease, and until the server has moved the tie to another one.
 */
public final class Tie {
  private final long leaseNanos;
  private List<Held<?>> held = new ArrayList<>();
  private boolean isOver;

  /** A connection that no command uses now. Its commands have arrived at the settled time. */
  private record Held<C>(Pool<C> pool, C connection, boolean isClean, long settledAt) {
    void putBack(boolean isReusable) {
      pool.putBack(connection, isReusable);
    }
  }

  /** Makes the tie of a grant. */
  public Tie(long leaseNanos) {
    this.leaseNanos = leaseNanos;
  }

  /** Takes the connection for the next command. Returns null if the command needs a new one. */
  @SuppressWarnings("unchecked") // The connections of a pool are of its type.
  synchronized <C> @Nullable C latest(Pool<C> pool) {
    for (int last = held.size() - 1; last >= 0; last--) {
      Held<?> one = held.get(last);
      if (one.isClean && one.pool == pool) return (C) held.remove(last).connection;
    }
    return null;
  }

  /** Keeps a connection after a command. A clean one got the reply. */
  <C> void keep(Pool<C> pool, C connection, boolean isClean) {
    long settledAt = isClean ? Clock.now() : Clock.after(Clock.now(), leaseNanos);
    Held<C> one = new Held<>(pool, connection, isClean, settledAt);
    if (!kept(one)) one.putBack(false);
  }

  private synchronized boolean kept(Held<?> one) {
    return !isOver && held.add(one);
  }

  /** Closes the connections whose commands arrived before the one that moved the tie. */
  public void moved(long askedAt) {
    List<Held<?>> earlier = new ArrayList<>();
    synchronized (this) {
      held.removeIf(one -> one.settledAt < askedAt && earlier.add(one));
    }
    earlier.forEach(one -> one.putBack(false));
  }

  /** Puts the connections back, because the server has released the lock. */
  public void close() {
    end().forEach(one -> one.putBack(one.isClean));
  }

  /** Closes the connections. Otherwise the server would go on renewing the lock. */
  public void cut() {
    end().forEach(one -> one.putBack(false));
  }

  private synchronized List<Held<?>> end() {
    List<Held<?>> all = held;
    isOver = true;
    held = List.of();
    return all;
  }
}
