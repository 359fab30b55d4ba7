package io.github.redislock;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Clock;
import java.lang.System.Logger.Level;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/** A thread that renews the grants that are held, and notices their ends. */
final class Keeper {
  private final Set<Grant> held = ConcurrentHashMap.newKeySet();
  private volatile long looksAt = Clock.NEVER;
  private @Nullable Thread thread;
  private boolean isClosed;

  Set<Grant> held() {
    return held;
  }

  /**
   * Looks after a grant from now on.
   *
   * <p>perf: Most locks are released long before anything is due, so the keeper isn't woken for a
   * grant that is due after its next look.
   */
  void hold(Grant grant) {
    if (grant.isEnded()) return;
    held.add(grant);
    if (grant.due() < looksAt) wake();
  }

  void drop(Grant grant) {
    held.remove(grant);
  }

  synchronized void close() {
    isClosed = true;
    if (thread != null) LockSupport.unpark(thread);
  }

  private synchronized void wake() {
    if (isClosed) return;
    if (thread == null) {
      Thread started = Background.thread(this::run);
      started.start();
      thread = started;
    } else {
      LockSupport.unpark(thread);
    }
  }

  private void run() {
    while (!isOver()) {
      long at = look();
      if (!held.isEmpty()) LockSupport.parkNanos(this, at - Clock.now());
    }
  }

  /** Ends this thread if nothing is held. */
  private synchronized boolean isOver() {
    if (held.isEmpty()) {
      // The next grant wakes the keeper, because no look is to come.
      looksAt = Clock.NEVER;
    }
    boolean isOver = isClosed || held.isEmpty();
    if (isOver) thread = null;
    return isOver;
  }

  /** Does what is due. Returns when the next thing is due. */
  private long look() {
    // Until all are seen, a new grant wakes the keeper again.
    looksAt = Clock.NEVER;
    long now = Clock.now();
    long next = Clock.NEVER;
    for (Grant grant : held) next = Math.min(next, lookAfter(grant, now));
    looksAt = next;
    return next;
  }

  /** Does what is due for one grant, so that its failure leaves the other grants alone. */
  private long lookAfter(Grant grant, long now) {
    try {
      if (!grant.isEnded()) return grant.lookAfter(now);
      // A renewal or an extend held it again while it was released.
      held.remove(grant);
      return Clock.NEVER;
    } catch (RuntimeException | Error fault) {
      Events.LOG.log(Level.WARNING, "a renewal failed, and is repeated soon", fault);
      return grant.postpone(now);
    }
  }
}
