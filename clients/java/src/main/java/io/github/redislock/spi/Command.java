package io.github.redislock.spi;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;

/**
 * A lock command. Its text form shows the name alone, because the words contain the token.
 *
 * @param name for example {@code LOCK.ACQUIRE}
 * @param key the first key, by which a cluster finds the node
 * @param words what follows the name, with all keys
 * @param blockNanos how long the server may withhold the reply on purpose
 */
public record Command(String name, byte[] key, List<byte[]> words, long blockNanos) {
  /** Returns {@code LOCK.verb}, or {@code LOCK.Mverb} for several keys. */
  public static Command of(String verb, List<byte[]> keys, List<?> arguments, long blockNanos) {
    List<byte[]> words = new ArrayList<>(arguments.size() + 8);
    if (keys.size() > 1) words.add(String.valueOf(keys.size()).getBytes(UTF_8));
    words.addAll(keys);
    for (Object argument : arguments) {
      words.add(argument instanceof byte[] bytes ? bytes : argument.toString().getBytes(UTF_8));
    }
    String name = (keys.size() > 1 ? "LOCK.M" : "LOCK.") + verb;
    return new Command(name, keys.get(0), words, blockNanos);
  }

  @Override
  public String toString() {
    return name;
  }
}
