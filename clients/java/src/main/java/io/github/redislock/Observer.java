package io.github.redislock;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;

/**
 * The events that a program may hear of its locks, on threads where it may block. The library logs exceptions of
 * these methods, and goes on.
 */
public interface Observer {
  /** An observer that logs outages, with the logger {@code io.github.redislock}. */
  Observer LOGGING = new Observer() {};

  /** The end of an acquire that had to wait. */
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

  /** Hears of the end of an acquire that had to wait. */
  default void waited(RedisLock lock, Duration waited, Outcome outcome) {}

  /** Hears of a grant. */
  default void granted(RedisLock lock, long fence) {}

  /** Hears of a loss. */
  default void lost(RedisLock lock, long fence) {}

  /**
   * Hears of an outage that no caller is told of: of a wait without a limit at once, and of a renewal
   * or a clean-up. Once for each outage of each of them.
   */
  default void unavailable(UnavailableException outage) {
    Logger logger = System.getLogger("io.github.redislock");
    logger.log(Level.WARNING, outage.getMessage());
  }
}
