package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * The options of a lock. Each method returns changed options and throws {@link
 * IllegalArgumentException}, which names the argument, for a value that the server would refuse.
 * Times are rounded up to whole milliseconds.
 */
public final class LockOptions implements Cloneable {
  private static final Duration LONGEST = Duration.ofMillis((1L << 53) - 1);
  private static final Duration LONGEST_MARGIN = Duration.ofSeconds(1);
  private static final long MOST_PERMITS = (1L << 32) - 1;

  Duration lease = Duration.ofSeconds(30);
  Duration keep = Duration.ofSeconds(10);
  Duration longestHold = Duration.ofHours(24);
  Duration leastHold = Duration.ZERO;
  /** Null if there is no limit. */
  @Nullable Duration longestWait;
  /** Null for a tenth of the lease, and at most 1 s. */
  @Nullable Duration margin;
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
    return lease;
  }

  /** Sets how long the others wait if this process dies. Default: 30 s. */
  public LockOptions lease(Duration lease) {
    LockOptions changed = copy();
    changed.lease = time("lease", lease, Duration.ofMillis(1));
    return changed;
  }

  /**
   * Sets how long before the end of the lease a grant counts as lost, so that the program can stop
   * before anybody else has the lock: less than the lease. Default: a tenth of the lease, and at
   * most 1 s.
   */
  public LockOptions margin(Duration margin) {
    LockOptions changed = copy();
    changed.margin = time("margin", margin, Duration.ZERO);
    return changed;
  }

  /** Sets how long the server keeps the place in the queue without hearing of it. Default: 10 s. */
  public LockOptions keep(Duration keep) {
    LockOptions changed = copy();
    changed.keep = time("keep", keep, Duration.ofMillis(1));
    return changed;
  }

  /**
   * Sets the longest time for which the lease is renewed. The lock is lost then. Default: 24 h. A
   * lease that isn't renewed has no such limit.
   */
  public LockOptions longestHold(Duration longest) {
    LockOptions changed = copy();
    changed.longestHold = time("longestHold", longest, Duration.ofMillis(1));
    return changed;
  }

  /**
   * Sets how long {@link RedisLock#acquire()} and {@link RedisLock#acquireAsync()} wait. Default:
   * without a limit, like the methods of {@link java.util.concurrent.locks.Lock}.
   */
  public LockOptions longestWait(Duration longest) {
    LockOptions changed = copy();
    changed.longestWait = time("longestWait", longest, Duration.ZERO);
    return changed;
  }

  /** Keeps the lock for at least this time after the grant, also if it is released. Default: 0. */
  public LockOptions leastHold(Duration least) {
    LockOptions changed = copy();
    changed.leastHold = time("leastHold", least, Duration.ZERO);
    return changed;
  }

  /** Turns renewal off. The lock is lost at the end of the lease unless it is extended. */
  public LockOptions withoutRenewal() {
    LockOptions changed = copy();
    changed.renewed = false;
    return changed;
  }

  /** Ties the lock to a connection of its own. The server releases it when that closes. */
  public LockOptions session() {
    LockOptions changed = copy();
    changed.session = true;
    return changed;
  }

  /** Makes the lock shared: shared holders admit each other. */
  public LockOptions shared() {
    LockOptions changed = copy();
    changed.shared = true;
    return changed;
  }

  /** Makes the lock a semaphore of {@code limit} permits. A holder takes one. */
  public LockOptions limit(long limit) {
    return limit(limit, 1);
  }

  /** Makes the lock a semaphore of {@code limit} permits. A holder takes {@code permits}. */
  public LockOptions limit(long limit, long permits) {
    check("limit", limit >= 1 && limit <= MOST_PERMITS, "1 to " + MOST_PERMITS);
    check("permits", permits >= 1 && permits <= limit, "1 to the limit");
    LockOptions changed = shared();
    changed.limit = limit;
    changed.permits = permits;
    return changed;
  }

  /** Sets data that everybody who may read the key can see: at most 1024 bytes. */
  public LockOptions data(String data) {
    byte[] bytes = Objects.requireNonNull(data, "data").getBytes(UTF_8);
    check("data", bytes.length <= 1024, "at most 1024 bytes");
    LockOptions changed = copy();
    changed.data = bytes;
    return changed;
  }

  /** Makes an acquire succeed only if this many replicas have acknowledged the grant: 1 to 1000. */
  public LockOptions replicas(int replicas) {
    check("replicas", replicas >= 1 && replicas <= 1000, "1 to 1000");
    LockOptions changed = copy();
    changed.replicas = replicas;
    return changed;
  }

  /** Sets what is called once for each loss, in a thread of the library. */
  public LockOptions onLost(Consumer<? super Hold> onLost) {
    LockOptions changed = copy();
    changed.onLost = Objects.requireNonNull(onLost, "onLost");
    return changed;
  }

  /** Returns the time between the deadline and the end of the lease at the server. */
  Duration marginOrDefault() {
    if (margin != null) return margin;
    Duration tenth = lease.dividedBy(10);
    return tenth.compareTo(LONGEST_MARGIN) < 0 ? tenth : LONGEST_MARGIN;
  }

  /** Returns the lease of the grant itself, which ends a margin after the longest hold. */
  Duration firstLease() {
    Duration longest = longest().plus(marginOrDefault());
    return lease.compareTo(longest) < 0 ? lease : longest;
  }

  /** Returns the longest hold. Nothing limits a lease that is never renewed. */
  Duration longest() {
    return renewed || session ? longestHold : LONGEST;
  }

  /** Returns how long the server may have a place or a grant of a token that it doesn't hear of. */
  Duration longestTrace() {
    Duration first = firstLease();
    return first.compareTo(keep) > 0 ? first : keep;
  }

  /** Returns a time in whole milliseconds, rounded up. */
  static Duration time(String argument, Duration time, Duration least) {
    Objects.requireNonNull(time, argument);
    boolean isValid = !time.isNegative() && time.compareTo(LONGEST) <= 0;
    String range = least.isZero() ? "0 to 2^53 - 1 ms" : "more than 0, at most 2^53 - 1 ms";
    check(argument, isValid && (least.isZero() || !time.isZero()), range);
    return Duration.ofMillis(time.plusNanos(999_999).toMillis());
  }

  static void check(String argument, boolean isValid, String valid) {
    if (!isValid) throw new IllegalArgumentException(argument + " must be " + valid);
  }

  private LockOptions copy() {
    try {
      return (LockOptions) clone();
    } catch (CloneNotSupportedException impossible) {
      throw new AssertionError(impossible);
    }
  }

  /** Returns the kind of the lock and its times, never the data. */
  @Override
  public String toString() {
    String kind = limit > 0 ? "semaphore of " + limit : shared ? "shared" : "exclusive";
    return kind + ", lease " + lease;
  }
}
