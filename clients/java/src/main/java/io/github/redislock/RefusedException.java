package io.github.redislock;

/** Thrown for any other error reply of the server, for example NOPERM. */
public final class RefusedException extends LockException {
  private static final long serialVersionUID = 1L;

  RefusedException(String message) {
    super(message, null);
  }
}
