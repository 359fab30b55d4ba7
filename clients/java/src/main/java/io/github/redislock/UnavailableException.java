package io.github.redislock;

/** Thrown if no server replied, or none could serve locks, in time. The cause says why. */
public final class UnavailableException extends LockException {
  private static final long serialVersionUID = 1L;

  UnavailableException(String message, Throwable cause) {
    super(message, cause);
  }
}
