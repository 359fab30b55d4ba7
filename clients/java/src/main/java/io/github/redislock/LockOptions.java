package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Clock;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * The options of a lock. Each method returns changed options and throws {@link
 * IllegalArgumentException}, which names the argument, for a value that the server would refuse.
 * Times are rounded up to whole milliseconds.
 */
public final class LockOptions implements Cloneable {
  private static final long LONGEST_MS = (1L << 53) - 1;
  private static final long MOST_PERMITS = (1L << 32) - 1;

  long leaseMs = 30_000;
  long keepMs = 10_000;
  long longestHoldMs = Duration.ofHours(24).toMillis();
  long leastHoldMs;
  /** The limit of an acquire without one. */
  long longestWaitNanos = Clock.NEVER;
  /** Null for a tenth of the lease, and at most 1 s. */
  @Nullable Long marginMs;
  boolean renewed = true;
  boolean session;
  boolean shared;
  long limit;
  long permits;
  byte @Nullable [] data;
  int replicas;
  @Nullable Consumer<? super Hold> onLost;

  private LockOptions() {}

  /** Returns the defaults: exclusive, a lease of 30 s, and renewed for up to 24 h. */
  public static LockOptions defaults() {
    return new LockOptions();
  }

  /** Returns how long the others wait if this process dies. */
  public Duration lease() {
    return Duration.ofMillis(leaseMs);
  }

  /** Sets how long the others wait if this process dies. Default: 30 s. */
  public LockOptions lease(Duration lease) {
    return with(changed -> changed.leaseMs = time("lease", lease, 1));
  }

  /**
   * Sets how long before the end of the lease a grant counts as lost, so that the program can stop
   * before anybody else has the lock: less than the lease. Default: a tenth of the lease, and at
   * most 1 s.
   */
  public LockOptions margin(Duration margin) {
    return with(changed -> changed.marginMs = time("margin", margin, 0));
  }

  /** Sets how long the server keeps the place in the queue without hearing of it. Default: 10 s. */
  public LockOptions keep(Duration keep) {
    return with(changed -> changed.keepMs = time("keep", keep, 1));
  }

  /**
   * Sets the longest time for which the lease is renewed. The lock is lost then. Default: 24 h. A
   * lease that isn't renewed has no such limit.
   */
  public LockOptions longestHold(Duration longest) {
    return with(changed -> changed.longestHoldMs = time("longestHold", longest, 1));
  }

  /**
   * Sets how long {@link RedisLock#acquire()} and {@link RedisLock#acquireAsync()} wait. Default:
   * without a limit, like the methods of {@link java.util.concurrent.locks.Lock}.
   */
  public LockOptions longestWait(Duration longest) {
    return with(changed -> changed.longestWaitNanos = nanos("longestWait", longest, 0));
  }

  /** Keeps the lock for at least this time after the grant, also if it is released. Default: 0. */
  public LockOptions leastHold(Duration least) {
    return with(changed -> changed.leastHoldMs = time("leastHold", least, 0));
  }

  /** Turns renewal off. The lock is lost at the end of the lease unless it is extended. */
  public LockOptions withoutRenewal() {
    return with(changed -> changed.renewed = false);
  }

  /** Ties the lock to a connection of its own. The server releases it when that closes. */
  public LockOptions session() {
    return with(changed -> changed.session = true);
  }

  /** Makes the lock shared: shared holders admit each other. */
  public LockOptions shared() {
    return with(changed -> changed.shared = true);
  }

  /** Makes the lock a semaphore of {@code limit} permits. A holder takes one. */
  public LockOptions limit(long limit) {
    return limit(limit, 1);
  }

  /** Makes the lock a semaphore of {@code limit} permits. A holder takes {@code permits}. */
  public LockOptions limit(long limit, long permits) {
    check("limit", limit >= 1 && limit <= MOST_PERMITS, "1 to " + MOST_PERMITS);
    check("permits", permits >= 1 && permits <= limit, "1 to the limit");
    return with(changed -> {
      changed.shared = true;
      changed.limit = limit;
      changed.permits = permits;
    });
  }

  /** Sets data that everybody who may read the key can see: at most 1024 bytes. */
  public LockOptions data(String data) {
    byte[] bytes = Objects.requireNonNull(data, "data").getBytes(UTF_8);
    check("data", bytes.length <= 1024, "at most 1024 bytes");
    return with(changed -> changed.data = bytes);
  }

  /** Makes an acquire succeed only if this many replicas have acknowledged the grant: 1 to 1000. */
  public LockOptions replicas(int replicas) {
    check("replicas", replicas >= 1 && replicas <= 1000, "1 to 1000");
    return with(changed -> changed.replicas = replicas);
  }

  /** Sets what is called once for each loss, in a thread of the library. */
  public LockOptions onLost(Consumer<? super Hold> onLost) {
    return with(changed -> changed.onLost = Objects.requireNonNull(onLost, "onLost"));
  }

  /** Returns the time between the deadline and the end of the lease at the server. */
  long marginOrDefaultMs() {
    return marginMs == null ? Math.min(leaseMs / 10, 1000) : marginMs;
  }

  /** Returns the lease of the grant itself, which ends a margin after the longest hold. */
  long firstLeaseMs() {
    return Math.min(leaseMs, longestMs() + marginOrDefaultMs());
  }

  /** Returns the longest hold. Nothing limits a lease that is never renewed. */
  long longestMs() {
    return renewed || session ? longestHoldMs : LONGEST_MS;
  }

  /** Returns a time in whole milliseconds, rounded up. */
  static long time(String argument, Duration time, long leastMs) {
    Objects.requireNonNull(time, argument);
    boolean isPositive = !time.isNegative() && (leastMs == 0 || !time.isZero());
    boolean isShort = time.compareTo(Duration.ofMillis(LONGEST_MS)) <= 0;
    String least = leastMs == 0 ? "0 to" : "more than 0, at most";
    check(argument, isPositive && isShort, least + " 2^53 - 1 ms");
    return time.plusNanos(999_999).toMillis();
  }

  /** Returns a time in nanoseconds, of whole milliseconds. */
  static long nanos(String argument, Duration time, long leastMs) {
    return TimeUnit.MILLISECONDS.toNanos(time(argument, time, leastMs));
  }

  static void check(String argument, boolean isValid, String valid) {
    if (!isValid) throw new IllegalArgumentException(argument + " must be " + valid);
  }

  private LockOptions with(Consumer<LockOptions> change) {
    try {
      LockOptions changed = (LockOptions) clone();
      change.accept(changed);
      return changed;
    } catch (CloneNotSupportedException impossible) {
      throw new AssertionError(impossible);
    }
  }

  /** Returns the kind of the lock and its times, never the data. */
  @Override
  public String toString() {
    String kind = limit > 0 ? "semaphore of " + limit : shared ? "shared" : "exclusive";
    return kind + ", lease " + lease();
  }
}
