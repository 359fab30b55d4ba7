package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/** Replies of LOCK.INFO. */
final class Info {
  private Info() {}

  /** Returns the permits of all holders: each number that follows that name. */
  static long permits(@Nullable Object reply) {
    List<?> words = words(reply).toList();
    long sum = 0;
    for (int at = 1; at < words.size(); at++) {
      boolean isNamed = words.get(at - 1) instanceof byte[] name
          && new String(name, UTF_8).equals("permits");
      if (isNamed && words.get(at) instanceof Long permits) sum += permits;
    }
    return sum;
  }

  /** Returns the parts of a list of names and values, or of entries. */
  private static Stream<?> words(@Nullable Object reply) {
    if (reply instanceof List<?> list) return list.stream().flatMap(Info::words);
    return reply instanceof Map.Entry<?, ?> entry
        ? Stream.of(entry.getKey(), entry.getValue()).flatMap(Info::words)
        : Stream.ofNullable(reply);
  }
}
