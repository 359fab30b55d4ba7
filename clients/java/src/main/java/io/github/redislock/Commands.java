package io.github.redislock;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.ServerError;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/** Commands, sent by a link, and sent again after an outage. */
final class Commands {
  static final long FIRST_PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(50);
  private static final long LONGEST_PAUSE_NANOS = TimeUnit.SECONDS.toNanos(1);
  private static final Set<String> OUTAGES = Set.of(
      "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "BUSY");

  final LockObserver observer;
  /** The longest time of a call that doesn't wait for a lock. */
  final long timeoutNanos;
  /** The longest time of one attempt, so that there is time for another server. */
  final long attemptNanos;
  private final Link link;
  /** The servers of whose outage the observer knows. */
  private final Set<String> down = ConcurrentHashMap.newKeySet();
  private volatile boolean isClosed;

  /** An action that is repeated after outages. */
  interface Attempt<T> {
    T run(long until) throws InterruptedException;
  }

  Commands(Link link, Duration timeout, LockObserver observer) {
    this.link = link;
    this.observer = observer;
    timeoutNanos = Clock.nanosOf(timeout);
    attemptNanos = Math.max(Math.min(timeoutNanos, TimeUnit.SECONDS.toNanos(1)), timeoutNanos / 3);
  }

  boolean isClosed() {
    return isClosed;
  }

  void close() {
    isClosed = true;
    link.close();
  }

  /**
   * Sends a command once. Throws {@link UnavailableException} after an outage. Tokens are taken out
   * of the texts of errors.
   */
  @Nullable Object ask(Command command, Call call, String token, long until)
      throws InterruptedException {
    long began = Clock.now();
    try {
      Object reply = link.send(command, call, until);
      down.remove(call.server());
      return reply;
    } catch (OutageException outage) {
      throw unavailable(outage, call.server(), until - began);
    } catch (ServerError reply) {
      String text = String.valueOf(reply.getMessage());
      if (!token.isEmpty()) text = text.replace(token, "<token>");
      if (!isOutage(reply.code(), text)) throw refusal(reply.code(), text);
      throw new UnavailableException(in(call.server()) + text, null, false, call.server());
    }
  }

  private UnavailableException unavailable(OutageException outage, String server, long nanos) {
    if (isClosed) return closed();
    double seconds = Math.max(nanos, 0) / 1e9;
    String text = outage.isLate()
        ? String.format(Locale.ROOT, "no reply%s within %.2g s", of(server), seconds)
        : in(server) + outage.getMessage();
    return new UnavailableException(text, outage, outage.isLate(), server);
  }

  private static String in(String server) {
    return server.isEmpty() ? "no server could serve the lock: " : server + ": ";
  }

  private static String of(String server) {
    return server.isEmpty() ? "" : " from " + server;
  }

  private static boolean isOutage(String code, String text) {
    if (code.equals("UNBLOCKED")) return text.contains("instance state changed");
    // The error of min-replicas-to-write, not that of the option replicas.
    if (code.equals("NOREPLICAS")) return text.contains("Not enough good replicas");
    return OUTAGES.contains(code) || text.contains("max number of clients");
  }

  /** Returns the exception for an error reply that the same command would get again. */
  private static LockException refusal(String code, String text) {
    // The reply quotes the arguments of the command.
    boolean isUnknown = text.startsWith("ERR unknown command") && text.contains("LOCK.");
    if (isUnknown) return new ModuleMissingException("this server hasn't loaded redis-lock");
    return switch (code) {
      case "UNBLOCKED" -> new WaitCancelledException(text);
      case "DEADLOCK" -> new DeadlockException(text);
      case "NOREPLICAS" -> new NotReplicatedException(text);
      default -> new RefusedException(text);
    };
  }

  private static UnavailableException closed() {
    return new UnavailableException("these locks are closed", null, false, "");
  }

  /** Repeats an action after outages, until it succeeds or the time is over. */
  <T> T retry(Call call, long until, Attempt<T> attempt) throws InterruptedException {
    return retry(call, until, attempt, fault -> {});
  }

  /** Repeats an action of which no caller hears. */
  <T> T retryInBackground(Call call, long until, Attempt<T> attempt) throws InterruptedException {
    return retry(call, until, attempt, this::report);
  }

  private interface Told {
    void of(UnavailableException fault);
  }

  private <T> T retry(Call call, long until, Attempt<T> attempt, Told told)
      throws InterruptedException {
    UnavailableException fault = null;
    for (long pause = FIRST_PAUSE_NANOS; ; pause = next(pause)) {
      long began = Clock.now();
      try {
        return attempt.run(Math.min(until, Clock.after(began, attemptNanos)));
      } catch (UnavailableException error) {
        // A last try that had little time says nothing about the cause.
        if (fault == null || until - began > FIRST_PAUSE_NANOS) fault = error;
      }
      told.of(fault);
      pause(call, pause, until, fault);
    }
  }

  /** Returns the pause after a pause. */
  static long next(long pause) {
    return Math.min(2 * pause, LONGEST_PAUSE_NANOS);
  }

  /** Pauses before the next try. Throws the fault if there is no time for one. */
  void pause(Call call, long nanos, long until, UnavailableException fault)
      throws InterruptedException {
    long now = Clock.now();
    long left = until - now;
    if (left <= 0 || isClosed) throw fault;
    long beforeLast = left - FIRST_PAUSE_NANOS;
    call.sleep(Clock.after(now, Math.min(nanos, beforeLast > 0 ? beforeLast : left)));
  }

  /** Returns the replies to a command about each key, within the command timeout. */
  List<@Nullable Object> ofEachKey(Recipe recipe, String verb, String token, Object... words) {
    return Call.uninterruptibly(call -> {
      long until = Clock.after(Clock.now(), timeoutNanos);
      return retry(call, until, end -> {
        List<@Nullable Object> replies = new ArrayList<>();
        for (byte[] key : recipe.keys()) {
          replies.add(ask(Command.of(verb, List.of(key), words), call, token, end));
        }
        return replies;
      });
    });
  }

  /** Executes work in the background. If it fails, the server ends a lock with its lease. */
  void goOn(Call.Steps<?> work) {
    try {
      Background.run(() -> {
        try {
          Call.uninterruptibly(work);
        } catch (RuntimeException | LinkageError error) {
          // The observer has heard of an outage, and the caller of a missing class.
        }
      });
    } catch (OutOfMemoryError noThread) {
      Events.LOG.log(System.Logger.Level.WARNING, "a lock ends with its lease", noThread);
    }
  }

  /** Tells the observer of an outage, once until the server replies again. */
  void report(UnavailableException fault) {
    if (!isClosed && down.add(fault.server)) Events.tell(() -> observer.unavailable(fault));
  }
}
