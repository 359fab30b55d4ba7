package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;

import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;

/** The keys and the options of a lock, checked, and the commands that they make. */
record Recipe(List<String> names, List<byte[]> keys, LockOptions options) {
  private static final long LONGEST_LEAVE_MS = 24 * 60 * 60 * 1000;

  static Recipe of(LockOptions options, List<String> names) {
    Objects.requireNonNull(options, "options");
    boolean isMarginLess = options.marginOrDefaultMs() < options.leaseMs;
    LockOptions.check("margin", isMarginLess, "less than the lease");
    LockOptions.check("keys", !names.isEmpty(), "one key or several");
    LockOptions.check("keys", new HashSet<>(names).size() == names.size(), "different");
    return new Recipe(names, names.stream().map(key -> key.getBytes(UTF_8)).toList(), options);
  }

  /** Returns the keys, separated by commas. */
  String name() {
    return String.join(", ", names);
  }

  long marginNanos() {
    return MILLISECONDS.toNanos(options.marginOrDefaultMs());
  }

  long firstLeaseNanos() {
    return MILLISECONDS.toNanos(options.firstLeaseMs());
  }

  /** Returns how long the server may have a place or a grant of a token that it doesn't hear of. */
  long longestTraceMs() {
    return Math.max(options.firstLeaseMs(), options.keepMs);
  }

  // --- commands ----------------------------------------------------------------------------------

  /** Returns the command of a try. The server waits for replicas within a time. */
  Command acquire(String token, long withinNanos) {
    return granting("ACQUIRE", ofGrant(token), 0, withinNanos);
  }

  /** Returns the command of a part of the time that is left. The last one leaves no place. */
  Command waitFor(String token, long blockNanos, long leftNanos, long withinNanos) {
    List<Object> words = ofGrant(token);
    Collections.addAll(words, "BLOCK", millis(blockNanos));
    if (blockNanos < leftNanos) {
      long mostMs = millis(Clock.after(leftNanos, 1_000_000_000));
      Collections.addAll(words, "KEEP", Math.min(options.keepMs, mostMs));
    }
    return granting("WAIT", words, blockNanos, withinNanos);
  }

  private Command granting(String verb, List<Object> words, long blockNanos, long withinNanos) {
    if (options.replicas == 0) return Command.of(verb, keys, words, blockNanos);
    Collections.addAll(words, "REPLICAS", options.replicas, "WITHIN", millis(withinNanos));
    return Command.of(verb, keys, words, blockNanos + withinNanos);
  }

  private List<Object> ofGrant(String token) {
    List<Object> words = new ArrayList<>(16);
    Collections.addAll(words, token, "PX", options.firstLeaseMs());
    if (options.shared) words.add("SHARED");
    if (options.limit > 0) {
      Collections.addAll(words, "LIMIT", options.limit, "PERMITS", options.permits);
    }
    if (options.data != null) Collections.addAll(words, "DATA", options.data);
    return words;
  }

  /** Returns the command that makes a held lock shared, for as long as a lease. */
  Command share(String token) {
    List<Object> words = ofGrant(token);
    Collections.addAll(words, "HOLDS", 1);
    return command("ACQUIRE", words.toArray());
  }

  Command extend(String token, long leaseMs) {
    return command("EXTEND", token, "PX", leaseMs, "GT");
  }

  /** Returns the command that extends the lock, and ties it to its connection. */
  Command tie(String token, long leaseMs) {
    return command("EXTEND", token, "PX", leaseMs, "GT", "SESSION");
  }

  Command release(String token) {
    return command("RELEASE", token);
  }

  /** Returns the command that ends the lock later, without its connection. */
  Command releaseAfter(String token, long restNanos) {
    return options.session
        ? command("EXTEND", token, "PX", millis(restNanos), "NOSESSION")
        : command("EXTEND", token, "PX", millis(restNanos));
  }

  Command leave(String token, long timeMs) {
    return command("RELEASE", token, "LEAVE", Math.min(timeMs, LONGEST_LEAVE_MS));
  }

  private Command command(String verb, Object... words) {
    return Command.of(verb, keys, List.of(words), 0);
  }

  /** Returns a length in milliseconds, rounded up. */
  private static long millis(long nanos) {
    return Math.max(nanos / 1_000_000 + (nanos % 1_000_000 == 0 ? 0 : 1), 1);
  }
}
