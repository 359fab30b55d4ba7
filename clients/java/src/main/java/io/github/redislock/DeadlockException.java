package io.github.redislock;

/** Thrown if the wait would never end. */
public final class DeadlockException extends LockException {
  private static final long serialVersionUID = 1L;

  DeadlockException(String message) {
    super(message, null);
  }
}
