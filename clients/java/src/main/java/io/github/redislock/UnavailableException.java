package io.github.redislock;

import org.jspecify.annotations.Nullable;

/** Thrown if no server could execute the command in time. The text and the cause say why. */
public final class UnavailableException extends LockException {
  /** True if no reply came in time, and false if something failed. */
  final boolean isLate;
  /** The server, in words. */
  final String server;

  UnavailableException(String message, @Nullable Throwable cause, boolean isLate, String server) {
    super(message, cause);
    this.isLate = isLate;
    this.server = server;
  }
}
