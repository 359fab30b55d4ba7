package io.github.redislock;

/** Thrown if another client ended the wait by LOCK.CANCEL. */
public final class WaitCancelledException extends LockException {
  WaitCancelledException(String message) {
    super(message, null);
  }
}
