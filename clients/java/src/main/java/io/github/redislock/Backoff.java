package io.github.redislock;

import java.util.concurrent.TimeUnit;

/** The pauses between failed attempts: 50 ms, and twice as long each time up to 1 s. */
final class Backoff {
  private static final long FIRST_NANOS = TimeUnit.MILLISECONDS.toNanos(50);
  private static final long LONGEST_NANOS = TimeUnit.SECONDS.toNanos(1);

  private long nextNanos = FIRST_NANOS;

  long nextNanos() {
    long pause = nextNanos;
    nextNanos = Math.min(2 * pause, LONGEST_NANOS);
    return pause;
  }

  void reset() {
    nextNanos = FIRST_NANOS;
  }
}
