package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Link;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

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
  private static final Duration LONGEST_ATTEMPT = Duration.ofSeconds(1);
  /** Runs code of the program, which may block. */
  static final ExecutorService EVENTS = Executors.newCachedThreadPool(work -> daemon(work, "redis-lock-events"));

  final Link link;
  final Duration commandTimeout;
  /** The longest time of one attempt. The next one may find another node. */
  final Duration attempt;
  private final Observer observer;
  private final LockOptions defaults;
  private final ScheduledThreadPoolExecutor timer;
  private final Set<Grant> grants = ConcurrentHashMap.newKeySet();
  /** The open links of single grants. */
  private final Set<Link> owned = ConcurrentHashMap.newKeySet();
  /** The calls that haven't ended. */
  private final Set<CompletableFuture<?>> calls = ConcurrentHashMap.newKeySet();
  private volatile boolean isClosed;

  /** Makes locks with a command timeout of 1 s that log outages. */
  public Locks(Link link) {
    this(link, COMMAND_TIMEOUT, Observer.LOGGING);
  }

  /**
   * Makes locks.
   *
   * @param commandTimeout the longest time of every call that doesn't wait for a lock, with connecting
   *     and sending again
   */
  public Locks(Link link, Duration commandTimeout, Observer observer) {
    this(link, commandTimeout, observer, LockOptions.defaults());
  }

  /** Makes locks, with the options of those that are asked for without options. */
  public Locks(Link link, Duration commandTimeout, Observer observer, LockOptions defaults) {
    this.link = Objects.requireNonNull(link, "link");
    this.commandTimeout = LockOptions.time("commandTimeout", commandTimeout, Duration.ofMillis(1));
    attempt = this.commandTimeout.compareTo(LONGEST_ATTEMPT) < 0 ? this.commandTimeout : LONGEST_ATTEMPT;
    this.observer = Objects.requireNonNull(observer, "observer");
    this.defaults = Objects.requireNonNull(defaults, "defaults");
    timer = new ScheduledThreadPoolExecutor(1, work -> daemon(work, "redis-lock-timer"));
    timer.setRemoveOnCancelPolicy(true);
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
    return new RedisLock(this, Objects.requireNonNull(options, "options"), bytesOf(keys));
  }

  /** Returns a pair of locks: readers share the key, a writer has it alone. */
  public RedisReadWriteLock readWriteLock(String key) {
    return readWriteLock(defaults, key);
  }

  /** Returns a pair of locks with options, which may not have a mode or a token. */
  public RedisReadWriteLock readWriteLock(LockOptions options, String key) {
    LockOptions.check("options", options.token == null, "without a token: each reader has its own");
    LockOptions.check("options", !options.shared, "without a mode");
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

  /** Releases everything that these locks hold. Returns how many grants were still held. */
  public int releaseAll() {
    List<CompletableFuture<Boolean>> releases = new ArrayList<>();
    for (Grant grant : grants) releases.add(grant.releaseAll());
    int held = 0;
    for (CompletableFuture<Boolean> release : releases) {
      if (Waits.uninterruptibly(release)) held++;
    }
    return held;
  }

  /**
   * Closes the connections of this library. Held sessions end at once, and other locks with their lease.
   * Calls that haven't ended, and later ones, throw {@link UnavailableException}.
   */
  @Override
  public void close() {
    isClosed = true;
    timer.shutdownNow();
    Stream<Link> links = Stream.concat(Stream.of(link), owned.stream());
    CompletableFuture.allOf(links.map(Locks::closing).toArray(CompletableFuture[]::new)).join();
    for (CompletableFuture<?> call : calls) call.completeExceptionally(closed());
  }

  /** Closes a link on a thread where that may take its time. */
  private static CompletableFuture<Void> closing(Link link) {
    return CompletableFuture.runAsync(link::close, EVENTS);
  }

  /** Returns a link for a single grant. */
  Link own() {
    Link own = link.own();
    owned.add(own);
    if (isClosed) closeOwn(own);
    return own;
  }

  void closeOwn(Link own) {
    owned.remove(own);
    closing(own);
  }

  /** Ends a call when these locks are closed. */
  void endWithClose(CompletableFuture<?> call) {
    calls.add(call);
    call.whenComplete((done, error) -> calls.remove(call));
    if (isClosed) call.completeExceptionally(closed());
  }

  private static UnavailableException closed() {
    return new UnavailableException("these locks are closed", null);
  }

  void holds(RedisLock lock, Grant grant) {
    grants.add(grant);
    if (grant.isEnded()) grants.remove(grant);
    tell(() -> observer.granted(lock, grant.fence));
  }

  void holdsNoLonger(Grant grant) {
    grants.remove(grant);
  }

  void tellWaited(RedisLock lock, Duration waited, Observer.Outcome outcome) {
    tell(() -> observer.waited(lock, waited, outcome));
  }

  void tellLost(RedisLock lock, long fence) {
    tell(() -> observer.lost(lock, fence));
  }

  void tellUnavailable(UnavailableException outage) {
    // The end of these locks is no outage.
    if (isClosed) return;
    tell(() -> observer.unavailable(outage));
  }

  /** Runs code of the program on a thread where it may block. */
  static void tell(Runnable told) {
    EVENTS.execute(() -> {
      try {
        told.run();
      } catch (RuntimeException | Error fault) {
        Logger logger = System.getLogger("io.github.redislock");
        logger.log(Level.WARNING, "an observer or onLost failed", fault);
      }
    });
  }

  ScheduledFuture<?> after(long nanos, Runnable work) {
    if (isClosed) throw closed();
    return timer.schedule(work, Math.max(nanos, 0), TimeUnit.NANOSECONDS);
  }

  private static Thread daemon(Runnable work, String name) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    return thread;
  }

  private static List<byte[]> bytesOf(String[] keys) {
    LockOptions.check("keys", keys.length > 0, "one key or several");
    List<byte[]> all = new ArrayList<>(keys.length);
    Set<String> seen = new HashSet<>();
    for (String key : keys) {
      LockOptions.check("keys", seen.add(Objects.requireNonNull(key, "key")), "different");
      all.add(key.getBytes(UTF_8));
    }
    return all;
  }
}
