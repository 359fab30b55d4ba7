package io.github.redislock;

/**
 * Thrown if the lock was lost before its release.
 *
 * <p>{@code java.util.concurrent} has {@link IllegalMonitorStateException} for a thread that
 * doesn't hold the lock, so code that catches it hears of a loss.
 */
public final class LockLostException extends IllegalMonitorStateException {
  LockLostException(String message) {
    super(message);
  }
}
