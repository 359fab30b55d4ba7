package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Link;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * The locks of one Redis client. One object is enough for a program:
 *
 * <pre>{@code
 * Locks locks = new Locks(new LettuceLink(RedisClient.create("redis://localhost")));
 * try (Hold hold = locks.lock("orders:42").acquire(Duration.ofSeconds(10))) {
 *   store(order, hold.fence());
 * }
 * }</pre>
 */
public final class Locks implements AutoCloseable {
  private static final Duration COMMAND_TIMEOUT = Duration.ofSeconds(1);
  private static final int TOKEN_BYTES = 16;
  private static final SecureRandom RANDOM = new SecureRandom();

  final Commands commands;
  /** The grants that are held. */
  final Set<Grant> held;
  final Crowd.All crowds;
  final Owners owners = new Owners();
  private final LockOptions defaults;

  /** Makes locks with a command timeout of 1 s that log outages. */
  public Locks(Link link) {
    this(link, COMMAND_TIMEOUT, LockObserver.LOGGING);
  }

  /**
   * Makes locks.
   *
   * @param commandTimeout the longest time of every call that doesn't wait for a lock, with
   *     connecting and sending again
   */
  public Locks(Link link, Duration commandTimeout, LockObserver observer) {
    this(link, commandTimeout, observer, LockOptions.defaults());
  }

  /** Makes locks, with the options of those that are asked for without options. */
  public Locks(
      Link link, Duration commandTimeout, LockObserver observer, LockOptions defaults) {
    this(new Commands(link, commandTimeout, observer), ConcurrentHashMap.newKeySet(),
        new Crowd.All(), Objects.requireNonNull(defaults, "defaults"));
  }

  private Locks(Commands commands, Set<Grant> held, Crowd.All crowds, LockOptions defaults) {
    this.commands = commands;
    this.held = held;
    this.crowds = crowds;
    this.defaults = defaults;
  }

  /**
   * Returns these locks for other owners: a thread that holds a lock of these waits for it if it
   * acquires it there. All else is shared, so closing one of them closes both.
   */
  public Locks apart() {
    return new Locks(commands, held, crowds, defaults);
  }

  /** Returns the options of locks that are asked for without options. */
  public LockOptions defaults() {
    return defaults;
  }

  /** Returns a lock on one key, or on several that are granted together or not at all. */
  public RedisLock lock(String... keys) {
    return lock(defaults, keys);
  }

  /** Returns a lock with options. */
  public RedisLock lock(LockOptions options, String... keys) {
    return new RedisLock(this, Recipe.of(options, List.of(keys)));
  }

  /** Returns a pair of locks: readers share the key, a writer has it alone. */
  public RedisReadWriteLock readWriteLock(String key) {
    return readWriteLock(defaults, key);
  }

  /** Returns a pair of locks with options, which may not have a mode. */
  public RedisReadWriteLock readWriteLock(LockOptions options, String key) {
    return new RedisReadWriteLock(this, options, key);
  }

  /** Returns a semaphore of {@code limit} permits. */
  public RedisSemaphore semaphore(String key, long limit) {
    return semaphore(defaults, key, limit);
  }

  /** Returns a semaphore of {@code limit} permits with options. */
  public RedisSemaphore semaphore(LockOptions options, String key, long limit) {
    return new RedisSemaphore(this, options, key, limit);
  }

  /** Returns a grant that another process acquired and detached, or nothing if it has ended. */
  public Optional<Hold> adopt(String token, long fence, String... keys) {
    return adopt(defaults, token, fence, keys);
  }

  /** Returns such a grant with options, whose lease it gets. */
  public Optional<Hold> adopt(LockOptions options, String token, long fence, String... keys) {
    int length = Objects.requireNonNull(token, "token").getBytes(UTF_8).length;
    boolean isToken = length >= 1 && length <= 256 && !token.equals("*");
    LockOptions.check("token", isToken, "1 to 256 bytes, and not '*'");
    // A command of the first process may still arrive.
    Grant grant = new Grant(lock(options, keys), token, fence, Clock.now(), true);
    long until = commands.timeout();
    if (!grant.takeOver(options.firstLeaseMs())) return Optional.empty();
    Call.uninterruptibly(call -> {
      grant.tie(call, until);
      return grant;
    });
    return Optional.of(hold(grant));
  }

  /** Returns {@link #once(LockOptions, String, Supplier, Supplier)} with the default options. */
  public <T> T once(String key, Supplier<Optional<T>> read, Supplier<T> compute)
      throws InterruptedException {
    return once(defaults, key, read, compute);
  }

  /**
   * Returns what {@code read} returns, or if that is nothing what {@code compute} returns: one
   * caller computes at a time. The others wait, and then read all at once. So {@code compute} must
   * store its result where {@code read} finds it.
   *
   * @throws NotAcquiredException if the time {@code longestWait} was over before there was a result
   */
  public <T> T once(
      LockOptions options, String key, Supplier<Optional<T>> read, Supplier<T> compute)
      throws InterruptedException {
    RedisLock lock = lock(options, key);
    RedisLock readers = lock(options.shared(), key);
    Optional<T> result = read.get();
    if (result.isPresent()) return result.get();
    Optional<Hold> first = lock.tryAcquire();
    if (first.isEmpty()) {
      try (Hold reading = readers.acquire()) {
        result = read.get();
      }
      if (result.isPresent()) return result.get();
    }
    // If the one that computed failed, the others take turns.
    try (Hold computing = first.isPresent() ? first.get() : lock.acquire()) {
      return read.get().orElseGet(compute);
    }
  }

  /** Releases everything that these locks hold. Returns how many grants were still held. */
  public int releaseAll() {
    int count = 0;
    RuntimeException failure = null;
    long until = commands.timeout();
    for (Grant grant : List.copyOf(held)) {
      try {
        if (!grant.isEnded() && grant.release(until, grant.staysUntil)) count++;
      } catch (IllegalMonitorStateException released) {
        // Another thread has just released it.
      } catch (RuntimeException error) {
        failure = error;
      }
    }
    if (failure != null) throw failure;
    return count;
  }

  /**
   * Closes the connections of this library. Held sessions end at once, and other locks with their
   * lease. Calls that haven't ended, and later ones, throw {@link UnavailableException}.
   */
  @Override
  public void close() {
    commands.close();
    held.forEach(Grant::keep);
  }

  static String drawToken() {
    byte[] bits = new byte[TOKEN_BYTES];
    RANDOM.nextBytes(bits);
    return HexFormat.of().formatHex(bits);
  }

  /** Returns the hold of a new grant, which is looked after from now on. */
  Hold hold(Grant grant) {
    Hold hold = Hold.of(grant);
    try {
      grant.keep();
    } catch (OutOfMemoryError noThread) {
      grant.release();
      throw noThread;
    }
    Commands.tell(() -> commands.observer.granted(hold));
    return hold;
  }

  /** Returns the permits of all holders of the keys. A holder without a limit has one. */
  long permitsOf(Recipe recipe) {
    return commands.ofEachKey(recipe, "INFO", "", "WAITERS", 0).stream()
        .mapToLong(info -> permitsIn(words(info).toList())).sum();
  }

  /** Returns the sum of the numbers that follow the name. */
  private static long permitsIn(List<?> words) {
    long sum = 0;
    for (int at = 1; at < words.size(); at++) {
      boolean isNamed = words.get(at - 1) instanceof byte[] name
          && new String(name, UTF_8).equals("permits");
      if (isNamed && words.get(at) instanceof Long permits) sum += permits;
    }
    return sum;
  }

  /** Returns the parts of a list of names and values, or of entries. */
  private static Stream<?> words(@Nullable Object reply) {
    if (reply instanceof List<?> list) return list.stream().flatMap(Locks::words);
    return reply instanceof Map.Entry<?, ?> entry
        ? Stream.of(entry.getKey(), entry.getValue()).flatMap(Locks::words)
        : Stream.ofNullable(reply);
  }
}
