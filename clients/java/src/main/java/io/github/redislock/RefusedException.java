package io.github.redislock;

/** Thrown for any other error reply of the server, for example NOPERM. */
public final class RefusedException extends LockException {
  RefusedException(String message) {
    super(message, null);
  }
}
