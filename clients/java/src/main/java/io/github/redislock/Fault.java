package io.github.redislock;

import io.github.redislock.spi.ServerError;
import java.util.Set;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;

/** The errors of commands: which are an outage that may pass, and what the caller gets of the others. */
final class Fault {
  private static final Set<String> PASSING =
      Set.of("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "BUSY");

  private Fault() {}

  /** Returns true if the same command may succeed later. */
  static boolean isOutage(Throwable error) {
    Throwable cause = unwrapped(error);
    if (!(cause instanceof ServerError reply)) return !(cause instanceof LockException);
    String text = String.valueOf(reply.getMessage());
    return PASSING.contains(reply.code())
        || text.contains("max number of clients")
        || text.startsWith("UNBLOCKED") && text.contains("instance state changed");
  }

  /** Returns the outage that this error is a sign of, in words. */
  static UnavailableException outage(Throwable error) {
    Throwable cause = unwrapped(error);
    return new UnavailableException("no server could serve the lock: " + inWords(cause), cause);
  }

  /** Returns the outage that a release met, which goes on in the background. */
  static UnavailableException unreleased(Throwable error) {
    Throwable cause = unwrapped(error);
    return new UnavailableException(
        "no server could release the lock, which ends with its lease at the latest: " + inWords(cause), cause);
  }

  /** Returns the outage that a renewal, a release or a clean-up met in the background. */
  static UnavailableException inBackground(Throwable error) {
    Throwable cause = unwrapped(error);
    return cause instanceof UnavailableException outage
        ? outage
        : new UnavailableException("the server refused a renewal or a release: " + cause.getMessage(), cause);
  }

  /** Returns the exception that ends a call. */
  static LockException ending(Throwable error) {
    return isOutage(error) ? outage(error) : refusal(error);
  }

  /** Returns the exception for an error reply that the same command would get again. */
  static LockException refusal(Throwable error) {
    Throwable cause = unwrapped(error);
    if (cause instanceof LockException told) return told;
    String reply = String.valueOf(cause.getMessage());
    String code = cause instanceof ServerError server ? server.code() : "";
    if (code.equals("DEADLOCK")) return new DeadlockException(reply, null);
    if (code.equals("NOREPLICAS")) return new NotReplicatedException(reply, null);
    if (code.equals("UNBLOCKED")) return new WaitCancelledException(reply, null);
    // The reply quotes the arguments of the command, the token too.
    if (reply.startsWith("ERR unknown command")) {
      return new ModuleMissingException("this server hasn't loaded redis-lock", null);
    }
    return new RefusedException(reply, null);
  }

  private static String inWords(Throwable cause) {
    if (cause instanceof TimeoutException && cause.getMessage() == null) return "no reply in time";
    String words = cause.getMessage();
    for (Throwable deeper = cause.getCause(); deeper != null; deeper = deeper.getCause()) {
      if (deeper.getMessage() != null && !String.valueOf(words).contains(deeper.getMessage())) {
        words += ": " + deeper.getMessage();
      }
    }
    return words == null ? cause.getClass().getSimpleName() : words;
  }

  static Throwable unwrapped(Throwable error) {
    Throwable cause = error;
    while ((cause instanceof CompletionException || cause instanceof ExecutionException) && cause.getCause() != null) {
      cause = cause.getCause();
    }
    return cause;
  }
}
