package io.github.redislock;

/** Thrown if the lock was lost before its release. */
public final class LockLostException extends LockException {
  private static final long serialVersionUID = 1L;

  LockLostException(String message, Throwable cause) {
    super(message, cause);
  }
}
