package io.github.redislock;

/** Thrown if somebody else held the lock until the time was over. */
public final class NotAcquiredException extends LockException {
  NotAcquiredException(String message) {
    super(message, null);
  }
}
