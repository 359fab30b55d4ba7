package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * The options of a lock. Each method returns changed options and throws {@link
 * IllegalArgumentException}, which names the argument, for a value that the server would refuse. Times
 * are rounded up to whole milliseconds.
 */
public final class LockOptions implements Cloneable {
  private static final Duration LONGEST = Duration.ofMillis((1L << 53) - 1);
  private static final long MOST_PERMITS = (1L << 32) - 1;

  Duration lease = Duration.ofSeconds(30);
  Duration keep = Duration.ofSeconds(10);
  Duration longestHold = Duration.ofHours(24);
  Duration leastHold = Duration.ZERO;
  /** Null if there is no limit. */
  Duration longestWait;
  boolean renewed = true;
  boolean session;
  boolean shared;
  long limit;
  long permits;
  byte[] token;
  byte[] data;
  int replicas;
  Consumer<? super RedisLock> lost = lock -> {};

  private LockOptions() {}

  /** Returns the defaults: exclusive, a lease of 30 s, renewed for up to 24 h, a token of 128 random bits. */
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

  /** Sets how long the server keeps the place in the queue without hearing of it. Default: 10 s. */
  public LockOptions keep(Duration keep) {
    LockOptions changed = copy();
    changed.keep = time("keep", keep, Duration.ofMillis(1));
    return changed;
  }

  /**
   * Sets the longest time for which the lease is renewed. The lock is lost then. Default: 24 h. A lease that
   * isn't renewed has no such limit.
   */
  public LockOptions longestHold(Duration longest) {
    LockOptions changed = copy();
    changed.longestHold = time("longestHold", longest, Duration.ofMillis(1));
    return changed;
  }

  /**
   * Sets how long {@link RedisLock#acquire()} and {@link RedisLock#acquireAsync()} wait. Default: without a
   * limit, like the methods of {@link java.util.concurrent.locks.Lock}.
   */
  public LockOptions longestWait(Duration longest) {
    LockOptions changed = copy();
    changed.longestWait = time("longestWait", longest, Duration.ZERO);
    return changed;
  }

  /** Keeps the lock for at least this time after the grant, also if it is released earlier. Default: 0. */
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

  /** Makes the lock a semaphore of at most {@code limit} permits, of which a holder takes one. */
  public LockOptions limit(long limit) {
    return limit(limit, 1);
  }

  /** Makes the lock a semaphore of at most {@code limit} permits, of which a holder takes {@code permits}. */
  public LockOptions limit(long limit, long permits) {
    check("limit", limit >= 1 && limit <= MOST_PERMITS, "1 to " + MOST_PERMITS);
    check("permits", permits >= 1 && permits <= limit, "1 to the limit");
    LockOptions changed = shared();
    changed.limit = limit;
    changed.permits = permits;
    return changed;
  }

  /** Sets the token, which names the owner and controls the lock. Default: a new one for each acquire. */
  public LockOptions token(String token) {
    byte[] bytes = Objects.requireNonNull(token, "token").getBytes(UTF_8);
    check("token", bytes.length >= 1 && bytes.length <= 256 && !token.equals("*"), "1 to 256 bytes, and not '*'");
    LockOptions changed = copy();
    changed.token = bytes;
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

  /** Sets what is called once for each loss, on a thread of the library. */
  public LockOptions onLost(Consumer<? super RedisLock> lost) {
    LockOptions changed = copy();
    changed.lost = Objects.requireNonNull(lost, "onLost");
    return changed;
  }

  /** Returns true if the lease is renewed, by this library or by the server. */
  boolean renews() {
    return renewed || session;
  }

  /** Returns the time after which the lease isn't renewed any more. Nothing limits a lease that never is. */
  Duration lastRenewal() {
    return renews() ? longestHold : LONGEST;
  }

  /** Returns the lease of the grant itself. */
  Duration firstLease() {
    return lease.compareTo(lastRenewal()) < 0 ? lease : lastRenewal();
  }

  /** Returns the words of the mode and of the data. */
  List<byte[]> mode() {
    List<byte[]> words = new ArrayList<>();
    if (shared) words.add("SHARED".getBytes(UTF_8));
    if (limit > 0) {
      for (String word : new String[] {"LIMIT", "" + limit, "PERMITS", "" + permits}) words.add(word.getBytes(UTF_8));
    }
    if (data != null) {
      words.add("DATA".getBytes(UTF_8));
      words.add(data);
    }
    return words;
  }

  static Duration time(String argument, Duration time, Duration least) {
    Objects.requireNonNull(time, argument);
    check(argument, time.compareTo(Duration.ZERO) >= 0 && time.compareTo(LONGEST) <= 0 && !(time.isZero() && !least.isZero()),
        least.isZero() ? "0 to 2^53 - 1 ms" : "more than 0, at most 2^53 - 1 ms");
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

  /** Returns the kind of the lock and its times, never the token. */
  @Override
  public String toString() {
    String kind = limit > 0 ? "semaphore of " + limit : shared ? "shared" : "exclusive";
    return kind + ", lease " + lease;
  }
}
