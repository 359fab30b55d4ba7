package io.github.redislock;

/** Thrown if the server hasn't loaded redis-lock. */
public final class ModuleMissingException extends LockException {
  private static final long serialVersionUID = 1L;

  ModuleMissingException(String message) {
    super(message, null);
  }
}
