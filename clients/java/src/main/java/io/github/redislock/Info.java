package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** A reply of LOCK.INFO, or null if the key has neither holders nor waiters. */
record Info(@Nullable Object reply) {
  boolean isHeld() {
    return !holders().isEmpty();
  }

  /** Returns the sum of the permits of all holders. */
  long permits() {
    return holders().stream()
        .map(Info::fields)
        .mapToLong(holder -> holder.get("permits") instanceof Long permits ? permits : 1)
        .sum();
  }

  private List<?> holders() {
    return fields(reply).get("holders") instanceof List<?> holders ? holders : List.of();
  }

  /** Returns a list of names and values, or of entries, as a map. */
  private static Map<String, Object> fields(@Nullable Object list) {
    List<Object> words = new ArrayList<>();
    for (Object word : list instanceof List<?> replies ? replies : List.of()) {
      if (word instanceof Map.Entry<?, ?> entry) words.add(entry.getKey());
      words.add(word instanceof Map.Entry<?, ?> entry ? entry.getValue() : word);
    }
    Map<String, Object> fields = new HashMap<>();
    for (int at = 0; at + 1 < words.size(); at += 2) {
      Object value = words.get(at + 1);
      if (words.get(at) instanceof byte[] name) fields.put(new String(name, UTF_8), value);
    }
    return fields;
  }
}
