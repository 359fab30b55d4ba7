package io.github.redislock.spi;

/** A monotonic clock. Its times are nanoseconds since the program began, so {@code <} works. */
public final class Clock {
  /** The time that never comes. */
  public static final long NEVER = Long.MAX_VALUE;

  private static final long ORIGIN = System.nanoTime();

  private Clock() {}

  /** Returns the time now. */
  public static long now() {
    return System.nanoTime() - ORIGIN;
  }

  /** Returns the sum of a time and a length, or {@link #NEVER} if it is too great. */
  public static long after(long at, long nanos) {
    return at > NEVER - nanos ? NEVER : at + nanos;
  }
}
