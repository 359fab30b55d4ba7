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
  private final RedisLock one;

  RedisSemaphore(Locks locks, LockOptions options, String key, long limit) {
    this.locks = locks;
    this.options = options;
    this.key = key;
    this.limit = limit;
    one = lock(1);
  }

  /** Waits for one permit, without a limit unless the option {@code longestWait} sets one. */
  public Hold acquire() throws InterruptedException {
    return one.acquire();
  }

  /** Waits for permits like {@link #acquire()}, all of them or none. */
  public Hold acquire(long permits) throws InterruptedException {
    return lock(permits).acquire();
  }

  /** Tries once to get one permit. */
  public Optional<Hold> tryAcquire() {
    return one.tryAcquire();
  }

  /** Waits for one permit. Returns nothing if there was none until the time was over. */
  public Optional<Hold> tryAcquire(Duration time) throws InterruptedException {
    return one.tryAcquire(time);
  }

  /** Waits for permits, all of them or none. */
  public Optional<Hold> tryAcquire(long permits, Duration time) throws InterruptedException {
    return lock(permits).tryAcquire(time);
  }

  /** Waits for permits like {@link #acquire(long)}, in a thread of the library. */
  public CompletableFuture<Hold> acquireAsync(long permits) {
    return lock(permits).acquireAsync();
  }

  /** Waits for permits like {@link #tryAcquire(long, Duration)}, in a thread of the library. */
  public CompletableFuture<Optional<Hold>> tryAcquireAsync(long permits, Duration time) {
    return lock(permits).tryAcquireAsync(time);
  }

  /** Asks the server how many permits are free now. */
  public long availablePermits() {
    return Math.max(limit - locks.permitsOf(one.recipe), 0);
  }

  private RedisLock lock(long permits) {
    return locks.lock(options.limit(limit, permits), key);
  }

  @Override
  public String toString() {
    return "RedisSemaphore[" + key + ", " + limit + " permits]";
  }
}
