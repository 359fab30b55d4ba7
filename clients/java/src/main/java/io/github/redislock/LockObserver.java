package io.github.redislock;

import java.lang.System.Logger.Level;
import java.time.Duration;

/**
 * Hooks for logs, metrics and traces. A hook must return quickly, because it runs in the thread
 * that met the event. If a hook throws, the library logs that and goes on.
 */
public interface LockObserver {
  /** An observer that logs outages, with the logger {@code io.github.redislock}. */
  LockObserver LOGGING = new LockObserver() {};

  /** The ends of an acquire. */
  enum Outcome {
    /** The lock was granted. */
    GRANTED,
    /** Somebody else had it until the time was over. */
    NOT_ACQUIRED,
    /** The caller, or LOCK.CANCEL, ended the wait. */
    CANCELLED,
    /** An error ended it. */
    FAILED
  }

  /** Called after an acquire that didn't get the lock at once. */
  default void waited(RedisLock lock, Duration time, Outcome outcome) {}

  /** Called after each grant. */
  default void granted(Hold hold) {}

  /** Called once for each loss, in a thread of the library. */
  default void lost(Hold hold) {}

  /**
   * Called once for each outage that ends no call: while a call waits without a limit, and in the
   * background.
   */
  default void unavailable(UnavailableException outage) {
    Commands.LOG.log(Level.WARNING, outage.getMessage());
  }
}
