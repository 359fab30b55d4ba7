package io.github.redislock.spi;

import java.util.concurrent.CompletionException;
import java.util.function.Function;

/** The meanings of an exception of a Redis client. */
public enum Fault {
  /** The server replied with an error. */
  REPLY,
  /** No reply came in time. */
  LATE,
  /** There is no connection. */
  OUTAGE,
  /** The exception says nothing about a server. */
  OTHER;

  /** Returns what a {@link Link} throws for a failure, by the meaning of each of its causes. */
  public static RuntimeException told(Throwable error, Function<Throwable, Fault> meaning) {
    boolean isOutage = false;
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof Error fatal) throw fatal;
      Fault fault = meaning.apply(cause);
      if (fault == REPLY) return new ServerError(String.valueOf(cause.getMessage()), cause);
      if (fault == LATE) return OutageException.late(error);
      // Each node of a cluster may have replied with an error.
      for (Throwable also : cause.getSuppressed()) {
        if (told(also, meaning) instanceof ServerError reply) return reply;
      }
      isOutage |= fault == OUTAGE;
    }
    if (isOutage) return OutageException.failed(error);
    boolean isWrapped = error instanceof CompletionException && error.getCause() != null;
    Throwable own = isWrapped ? error.getCause() : error;
    return own instanceof RuntimeException known ? known : new IllegalStateException(own);
  }
}
