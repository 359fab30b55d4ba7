package io.github.redislock.spi;

import java.util.concurrent.CompletionException;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Thrown by a {@link Link}: the server replied with an error, no reply came in time, or there is no
 * connection.
 */
public final class Fault extends RuntimeException {
  private final Kind kind;

  /** The meanings of an exception of a Redis client. */
  public enum Kind {
    /** The server replied with an error. */
    REPLY,
    /** No reply came in time. */
    LATE,
    /** There is no connection. */
    OUTAGE,
    /** The exception says nothing about a server. */
    OTHER
  }

  private Fault(Kind kind, @Nullable String text, @Nullable Throwable cause) {
    super(String.valueOf(text), cause);
    this.kind = kind;
  }

  /** Makes the fault of an error reply, in the server's words. */
  public static Fault reply(@Nullable String text, @Nullable Throwable cause) {
    return new Fault(Kind.REPLY, text, cause);
  }

  /** Makes the lack of a reply in time. */
  public static Fault late(@Nullable Throwable cause) {
    return new Fault(Kind.LATE, "no reply in time", cause);
  }

  /** Makes the failure of a connection. */
  public static Fault outage(String text) {
    return new Fault(Kind.OUTAGE, text, null);
  }

  /** Makes the failure of a connection, in the words of its first cause. */
  public static Fault outage(Throwable error) {
    Throwable cause = error;
    while (cause.getCause() != null) cause = cause.getCause();
    return new Fault(Kind.OUTAGE, cause.toString(), error);
  }

  /** Returns what a {@link Link} throws for a failure, by the meaning of each of its causes. */
  public static RuntimeException of(Throwable error, Function<Throwable, Kind> meaning) {
    boolean isOutage = false;
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof Error fatal) throw fatal;
      if (cause instanceof Fault fault) return fault;
      Kind kind = meaning.apply(cause);
      if (kind == Kind.REPLY) return reply(cause.getMessage(), cause);
      if (kind == Kind.LATE) return late(error);
      // Each node of a cluster may have replied with an error.
      for (Throwable also : cause.getSuppressed()) {
        if (of(also, meaning) instanceof Fault fault && fault.kind == Kind.REPLY) return fault;
      }
      isOutage |= kind == Kind.OUTAGE;
    }
    if (isOutage) return outage(error);
    boolean isWrapped = error instanceof CompletionException && error.getCause() != null;
    Throwable own = isWrapped ? error.getCause() : error;
    return own instanceof RuntimeException known ? known : new IllegalStateException(own);
  }

  /** Returns the kind, which isn't {@link Kind#OTHER}. */
  public Kind kind() {
    return kind;
  }

  /** Returns the first word of the text: that of an error reply is a code like READONLY. */
  public String code() {
    return getMessage().split(" ", 2)[0];
  }
}
