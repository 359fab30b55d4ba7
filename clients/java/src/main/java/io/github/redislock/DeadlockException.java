package io.github.redislock;

/** Thrown if the wait would never end. */
public final class DeadlockException extends LockException {
  DeadlockException(String message) {
    super(message, null);
  }
}
