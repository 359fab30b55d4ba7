package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;

/** The keys and the options of a lock, checked, and the commands that they make. */
record Recipe(List<String> names, List<byte[]> keys, LockOptions options) {
  private static final Duration LONGEST_LEAVE = Duration.ofHours(24);

  static Recipe of(LockOptions options, String... names) {
    Objects.requireNonNull(options, "options");
    boolean isMarginLess = options.marginOrDefault().compareTo(options.lease) < 0;
    LockOptions.check("margin", isMarginLess, "less than the lease");
    List<String> keys = List.of(names);
    LockOptions.check("keys", !keys.isEmpty(), "one key or several");
    LockOptions.check("keys", new HashSet<>(keys).size() == keys.size(), "different");
    return new Recipe(keys, keys.stream().map(key -> key.getBytes(UTF_8)).toList(), options);
  }

  Recipe with(LockOptions changed) {
    return new Recipe(names, keys, changed);
  }

  /** Returns the keys, separated by commas. */
  String name() {
    return String.join(", ", names);
  }

  long marginNanos() {
    return Clock.nanosOf(options.marginOrDefault());
  }

  long firstLeaseNanos() {
    return Clock.nanosOf(options.firstLease());
  }

  // --- commands ----------------------------------------------------------------------------------

  /** Returns the command of a try. The server waits for replicas within a time. */
  Command acquire(String token, long withinNanos) {
    List<Object> words = ofGrant(token);
    addReplicas(words, withinNanos);
    return blocking(command("ACQUIRE", words), 0, withinNanos);
  }

  /** Returns the command of a part of the time that is left. The last one leaves no place. */
  Command waitFor(String token, long blockNanos, long leftNanos, long withinNanos) {
    List<Object> words = ofGrant(token);
    Collections.addAll(words, "BLOCK", millis(blockNanos));
    if (blockNanos < leftNanos) {
      long most = Clock.after(leftNanos, Duration.ofSeconds(1).toNanos());
      Collections.addAll(words, "KEEP", millis(Math.min(Clock.nanosOf(options.keep), most)));
    }
    addReplicas(words, withinNanos);
    return blocking(command("WAIT", words), blockNanos, withinNanos);
  }

  /** Returns the command that makes a held lock shared, for as long as a lease. */
  Command share(String token) {
    List<Object> words = ofGrant(token);
    Collections.addAll(words, "HOLDS", 1);
    return command("ACQUIRE", words);
  }

  Command extend(String token, Duration lease, boolean isTied) {
    List<Object> words = new ArrayList<>(List.of(token, "PX", lease.toMillis(), "GT"));
    if (isTied) words.add("SESSION");
    return command("EXTEND", words);
  }

  Command release(String token) {
    return command("RELEASE", List.of(token));
  }

  /** Returns the command that ends the lock later, without its connection. */
  Command releaseAfter(String token, long restNanos) {
    List<Object> words = new ArrayList<>(List.of(token, "PX", millis(restNanos)));
    if (options.session) words.add("NOSESSION");
    return command("EXTEND", words);
  }

  Command leave(String token, Duration time) {
    Duration bounded = time.compareTo(LONGEST_LEAVE) < 0 ? time : LONGEST_LEAVE;
    return command("RELEASE", List.of(token, "LEAVE", bounded.toMillis()));
  }

  private Command command(String verb, List<Object> words) {
    return Command.of(verb, keys, words.toArray());
  }

  private List<Object> ofGrant(String token) {
    List<Object> words = new ArrayList<>(16);
    Collections.addAll(words, token, "PX", options.firstLease().toMillis());
    if (options.shared) words.add("SHARED");
    if (options.limit > 0) {
      Collections.addAll(words, "LIMIT", options.limit, "PERMITS", options.permits);
    }
    if (options.data != null) Collections.addAll(words, "DATA", options.data);
    return words;
  }

  private void addReplicas(List<Object> words, long withinNanos) {
    if (options.replicas == 0) return;
    Collections.addAll(words, "REPLICAS", options.replicas, "WITHIN", millis(withinNanos));
  }

  /** Returns a command with the time that the server takes for it on purpose. */
  private Command blocking(Command command, long blockNanos, long withinNanos) {
    long nanos = blockNanos + (options.replicas == 0 ? 0 : withinNanos);
    return nanos == 0 ? command : command.blocking(nanos);
  }

  /** Returns a length in milliseconds, rounded up. */
  private static long millis(long nanos) {
    return Math.max(nanos / 1_000_000 + (nanos % 1_000_000 == 0 ? 0 : 1), 1);
  }
}
