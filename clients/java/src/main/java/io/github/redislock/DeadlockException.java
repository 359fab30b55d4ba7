package io.github.redislock;

/** Thrown if the server refuses a wait that would never end. */
public final class DeadlockException extends LockException {
  private static final long serialVersionUID = 1L;

  DeadlockException(String message, Throwable cause) {
    super(message, cause);
  }
}
