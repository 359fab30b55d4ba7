package io.github.redislock.lettuce;

import java.util.concurrent.TimeUnit;

/** The time for which a server has left commands without a reply, whatever their own limits are. */
final class Silence {
  private static final long LONG_NANOS = TimeUnit.MILLISECONDS.toNanos(500);

  private long repliedNanos = System.nanoTime();
  /** True if a command was sent after the latest reply. */
  private boolean isAwaited;
  private long awaitedNanos;

  /** Notes that a command is sent, and returns the time. */
  synchronized long sent() {
    long now = System.nanoTime();
    if (!isAwaited) awaitedNanos = now;
    isAwaited = true;
    return now;
  }

  synchronized void replied() {
    repliedNanos = System.nanoTime();
    isAwaited = false;
  }

  /** Forgets the commands of a connection that was replaced. */
  synchronized void end() {
    isAwaited = false;
  }

  /**
   * Returns true if the connection of an unanswered command, sent at this time, is to be replaced. A busy
   * program can be too slow for its replies: another connection would be slower yet, and the commands under
   * way would fail.
   */
  synchronized boolean isLong(long sentNanos) {
    long now = System.nanoTime();
    if (sentNanos - repliedNanos < 0) return now - repliedNanos >= LONG_NANOS;
    return isAwaited && now - awaitedNanos >= LONG_NANOS;
  }
}
