package io.github.redislock.spi;

import org.jspecify.annotations.Nullable;

/** Thrown by a {@link Link} without a connection, after it lost one, or without a reply in time. */
public final class OutageException extends RuntimeException {
  private final boolean isLate;

  private OutageException(String text, @Nullable Throwable cause, boolean isLate) {
    super(text, cause);
    this.isLate = isLate;
  }

  /** Makes the failure of a connection, in the words of its first cause. */
  public static OutageException failed(Throwable error) {
    Throwable cause = error;
    while (cause.getCause() != null) cause = cause.getCause();
    return new OutageException(String.valueOf(cause), error, false);
  }

  /** Makes the failure of a connection, in words of the library. */
  public static OutageException failed(String text) {
    return new OutageException(text, null, false);
  }

  /** Makes the lack of a reply in time. */
  public static OutageException late(@Nullable Throwable cause) {
    return new OutageException("no reply in time", cause, true);
  }

  /** Returns true if no reply came in time, and false if something failed. */
  public boolean isLate() {
    return isLate;
  }
}
