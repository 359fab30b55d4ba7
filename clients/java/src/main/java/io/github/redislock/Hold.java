package io.github.redislock;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;

/**
 * A grant of a lock. Whoever has it may extend or release it, in any thread. Every call returns
 * within the command timeout, or throws {@link UnavailableException}.
 *
 * <p>Keep the hold until you release it. If it is collected before, that is a loss: the library
 * logs it, tells the observer, and releases the lock.
 */
public final class Hold implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  final Grant grant;

  Hold(Grant grant) {
    this.grant = grant;
  }

  /** Returns the hold of a new grant. */
  static Hold of(Grant grant) {
    Hold hold = new Hold(grant);
    grant.hold = new WeakReference<>(hold);
    CLEANER.register(hold, grant::drop);
    return hold;
  }

  /** Returns the lock that was acquired. */
  public RedisLock lock() {
    return grant.lock;
  }

  /** Returns the keys. */
  public List<String> keys() {
    return grant.recipe().names();
  }

  /** Returns the fencing token, which is greater than that of every earlier grant of the lock. */
  public long fence() {
    return grant.fence;
  }

  /** Returns the token, which lets any client extend or release this grant. */
  public String token() {
    return grant.token;
  }

  /** Returns true if the grant ended before its release. */
  public boolean isLost() {
    return grant.isLost();
  }

  /** Returns the time until the loss if the lease isn't renewed; zero if the grant ended. */
  public Duration left() {
    return Duration.ofNanos(grant.leftNanos());
  }

  /** Asks the server whether this grant holds all its keys. */
  public boolean isOwned() {
    return whileReachable(grant::isOwned);
  }

  /**
   * Lets the lease end after this time, or later. Later renewals use the new length. Returns false
   * if the lock was lost.
   *
   * @throws IllegalMonitorStateException if it was released
   */
  public boolean extend(Duration lease) {
    return whileReachable(() -> grant.extend(lease));
  }

  /**
   * Releases the lock. Returns false if it had been lost.
   *
   * @throws IllegalMonitorStateException if it was released before
   */
  public boolean release() {
    return whileReachable(grant::release);
  }

  /**
   * Releases the lock after a time, which replaces the option {@code leastHold}. Returns false if
   * it had been lost.
   *
   * @throws IllegalMonitorStateException if it was released before
   */
  public boolean releaseAfter(Duration time) {
    Duration rest = Duration.ofMillis(LockOptions.time("time", time, 0));
    return whileReachable(() -> grant.releaseIn(rest));
  }

  /** Releases the lock like {@link #release}, in a thread of the library. */
  public CompletableFuture<Boolean> releaseAsync() {
    if (grant.isReleased()) throw grant.notHeld();
    return Waits.inBackground(this::release, late -> {});
  }

  /**
   * Leaves the lock to another process, which gets it by {@link Locks#adopt}. It isn't renewed here
   * any more.
   *
   * @throws IllegalMonitorStateException if it was released or lost before
   */
  public void detach() {
    grant.detach();
    Reference.reachabilityFence(this);
  }

  /**
   * Releases the lock, unless it was released before. The observer hears of an outage.
   *
   * @throws LockLostException if it was lost before. The exception of a {@code try} block with this
   *     resource comes first, and has this one among its suppressed ones
   */
  @Override
  public void close() {
    if (grant.isReleased()) return;
    boolean isHeld = true;
    try {
      isHeld = release();
    } catch (LockException failure) {
      grant.tell("the server refused a release: ", failure);
    }
    if (isHeld) return;
    throw new LockLostException("lost before it was released: " + grant.name());
  }

  /** Keeps this object from being collected during a call. */
  private <T> T whileReachable(Supplier<T> call) {
    try {
      return call.get();
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** Returns the keys and the state, never the token. */
  @Override
  public String toString() {
    String state = isLost() ? "lost" : grant.isReleased() ? "released" : "held";
    return "Hold[" + grant.name() + ", fence " + grant.fence + ", " + state + "]";
  }
}
