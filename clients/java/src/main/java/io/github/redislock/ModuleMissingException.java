package io.github.redislock;

/** Thrown if the server hasn't loaded redis-lock. */
public final class ModuleMissingException extends LockException {
  ModuleMissingException(String message) {
    super(message, null);
  }
}
