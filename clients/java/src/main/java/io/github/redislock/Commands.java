package io.github.redislock;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Link;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** Commands, sent by a link, and sent again after an outage. */
final class Commands {
  static final Logger LOG = System.getLogger("io.github.redislock");
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
    timeoutNanos = LockOptions.nanos("commandTimeout", timeout, 1);
    this.link = Objects.requireNonNull(link, "link");
    this.observer = Objects.requireNonNull(observer, "observer");
    attemptNanos = Math.max(Math.min(timeoutNanos, TimeUnit.SECONDS.toNanos(1)), timeoutNanos / 3);
  }

  /** Returns the time at which a call ends that begins now and doesn't wait for a lock. */
  long timeout() {
    return Clock.after(Clock.now(), timeoutNanos);
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
    try {
      Object reply = link.send(command, call, until);
      down.remove(call.server());
      return reply;
    } catch (Fault fault) {
      String text = fault.getMessage();
      if (!token.isEmpty()) text = text.replace(token, "<token>");
      boolean isReply = fault.kind() == Fault.Kind.REPLY;
      if (isReply && !isOutage(fault.code(), text)) throw refusal(fault.code(), text);
      boolean isLate = fault.kind() == Fault.Kind.LATE;
      // The fault of a reply may have the token in its text.
      throw unavailable(text, isReply ? null : fault, isLate, call);
    }
  }

  private UnavailableException unavailable(
      String text, @Nullable Throwable cause, boolean isLate, Call call) {
    if (isClosed) return new UnavailableException("these locks are closed", cause, false, "");
    String server = call.server().isEmpty() ? "no server could serve the lock" : call.server();
    return new UnavailableException(server + ": " + text, cause, isLate, call.server());
  }

  private static boolean isOutage(String code, String text) {
    // A late command of this acquire may have taken over the place.
    if (code.equals("UNBLOCKED")) {
      return text.contains("instance state changed") || text.contains("took over this place");
    }
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

  /** Repeats an action after outages, until it succeeds or the time is over. */
  <T> T retry(Call call, long until, Attempt<T> attempt) throws InterruptedException {
    return retry(call, until, fault -> {}, attempt);
  }

  /** Repeats an action, and tells of each outage. */
  <T> T retry(Call call, long until, Consumer<UnavailableException> told, Attempt<T> attempt)
      throws InterruptedException {
    for (long pause = FIRST_PAUSE_NANOS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_NANOS)) {
      try {
        return attempt.run(Math.min(until, Clock.after(Clock.now(), attemptNanos)));
      } catch (UnavailableException fault) {
        told.accept(fault);
        long now = Clock.now();
        // The last attempt comes shortly before the end.
        long beforeLast = until - now - FIRST_PAUSE_NANOS;
        long next = beforeLast > 0 ? Clock.after(now, Math.min(pause, beforeLast)) : until;
        if (!isClosed) call.sleep(next);
        if (isClosed || Clock.now() >= until) throw fault;
      }
    }
  }

  /** Returns the replies to a command about each key, within the command timeout. */
  List<@Nullable Object> ofEachKey(Recipe recipe, String verb, String token, Object... words) {
    return Call.uninterruptibly(call -> retry(call, timeout(), end -> {
      List<@Nullable Object> replies = new ArrayList<>();
      for (byte[] key : recipe.keys()) {
        Command command = Command.of(verb, List.of(key), List.of(words), 0);
        replies.add(ask(command, call, token, end));
      }
      return replies;
    }));
  }

  /** Executes work in the background, and then what ends it. The lock may end with its lease. */
  void goOn(Call.Steps<?> work, Runnable end) {
    try {
      Background.THREADS.execute(() -> {
        try {
          Call.uninterruptibly(work);
        } catch (RuntimeException | LinkageError error) {
          // The observer has heard of an outage, and the caller of a missing class.
        } finally {
          end.run();
        }
      });
    } catch (OutOfMemoryError noThread) {
      LOG.log(Level.WARNING, "a lock ends with its lease", noThread);
      end.run();
    }
  }

  /** Calls a hook of the program, and logs what it throws. */
  static void tell(Runnable hook) {
    try {
      hook.run();
    } catch (RuntimeException | Error fault) {
      LOG.log(Level.WARNING, "a hook of locks failed", fault);
    }
  }

  /** Tells the observer of an outage, once until the server replies again. */
  void report(UnavailableException fault) {
    if (!isClosed && down.add(fault.server)) tell(() -> observer.unavailable(fault));
  }
}
