package io.github.redislock;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/**
 * A grant that belongs to whoever has this object, on any thread. If it is forgotten, the library
 * releases the lock once the object is collected.
 */
public final class Hold implements AutoCloseable {
  private final Grant grant;

  Hold(Grant grant) {
    this.grant = grant;
    grant.heldBy(this);
  }

  /** Returns the fence, which is greater than that of every earlier grant of the lock. */
  public long fence() {
    return grant.fence;
  }

  /** Returns the token, which controls the lock at the server. */
  public String token() {
    return grant.token();
  }

  /** Returns true if the lock was lost by the server's word or by the local clock. */
  public boolean isLost() {
    return grant.isLost();
  }

  /** Returns what is left of the lease by the local clock. */
  public Duration remainingLease() {
    return grant.remaining();
  }

  /**
   * Sets the lease, also for later renewals. Returns false if the lock was lost.
   *
   * @throws IllegalMonitorStateException if it was released
   */
  public boolean extend(Duration lease) {
    grant.checkNotReleased();
    return Waits.uninterruptibly(grant.extend(lease));
  }

  /**
   * Releases the lock. Returns false if it had been lost.
   *
   * @throws IllegalMonitorStateException if it was released before
   */
  public boolean release() {
    grant.checkNotReleased();
    return Waits.uninterruptibly(grant.releaseAll());
  }

  /**
   * Gives the hold up. The server keeps the lock for this time, which replaces {@code leastHold}, and then
   * grants it to the next waiter. Returns false if it had been lost.
   */
  public boolean releaseAfter(Duration time) {
    Duration rest = LockOptions.time("time", time, Duration.ZERO);
    grant.checkNotReleased();
    return Waits.uninterruptibly(grant.releaseAfter(rest));
  }

  /** Releases the lock like {@link #release}, without a thread. */
  public CompletableFuture<Boolean> releaseAsync() {
    grant.checkNotReleased();
    return grant.releaseAll().thenApplyAsync(wasHeld -> wasHeld, Locks.EVENTS);
  }

  /**
   * Releases the lock unless it was released before. An outage is told to the {@link Observer}.
   *
   * @throws LockLostException if it was lost before
   */
  @Override
  public void close() {
    grant.close();
  }

  /** Returns the keys and the state, never the token. */
  @Override
  public String toString() {
    String state = grant.isHeld() ? "held" : grant.isLost() ? "lost" : "released";
    return "Hold[" + grant.name() + ", fence " + grant.fence + ", " + state + "]";
  }
}
