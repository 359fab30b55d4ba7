package io.github.redislock;

/** Thrown if another client ended the wait with LOCK.CANCEL, or took it over. */
public final class WaitCancelledException extends LockException {
  private static final long serialVersionUID = 1L;

  WaitCancelledException(String message, Throwable cause) {
    super(message, cause);
  }
}
