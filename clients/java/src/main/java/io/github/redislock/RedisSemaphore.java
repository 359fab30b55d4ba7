package io.github.redislock;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** A semaphore of all processes that use the same server. Each hold is an owner of its own. */
public final class RedisSemaphore {
  private final Locks locks;
  private final LockOptions options;
  private final String key;
  private final long limit;

  RedisSemaphore(Locks locks, LockOptions options, String key, long limit) {
    this.locks = locks;
    LockOptions.check("options", options.token == null, "without a token: each hold has its own");
    this.options = options.limit(limit);
    this.key = key;
    this.limit = limit;
  }

  /** Waits for one permit, without a limit unless the option {@code longestWait} sets one. */
  public Hold acquire() throws InterruptedException {
    return locks.lock(options, key).acquire();
  }

  /** Waits for permits like {@link #acquire()}, all of them or none. */
  public Hold acquire(long permits) throws InterruptedException {
    return locks.lock(options.limit(limit, permits), key).acquire();
  }

  /** Waits for one permit. Returns nothing if there was none until the time was over. */
  public Optional<Hold> tryAcquire(Duration time) throws InterruptedException {
    return locks.lock(options, key).tryAcquire(time);
  }

  /** Waits for permits, all of them or none. */
  public Optional<Hold> tryAcquire(long permits, Duration time) throws InterruptedException {
    return locks.lock(options.limit(limit, permits), key).tryAcquire(time);
  }

  /** Tries once to get one permit. */
  public Optional<Hold> tryAcquire() {
    return locks.lock(options, key).tryAcquire();
  }

  /** Waits for permits like {@link #acquire(long)}, without a thread. */
  public CompletableFuture<Hold> acquireAsync(long permits) {
    return locks.lock(options.limit(limit, permits), key).acquireAsync();
  }

  /** Waits for permits without a thread. Nothing if there were too few until the time was over. */
  public CompletableFuture<Optional<Hold>> tryAcquireAsync(long permits, Duration time) {
    return locks.lock(options.limit(limit, permits), key).tryAcquireAsync(time);
  }

  @Override
  public String toString() {
    return "RedisSemaphore[" + key + ", " + limit + " permits]";
  }
}
