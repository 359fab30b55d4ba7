package io.github.redislock.spi;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;

/** A lock command. Its text form shows the name alone, because the arguments contain the token. */
public final class Command {
  private final String name;
  private final List<byte[]> keys;
  private final List<byte[]> arguments;
  private final long blockNanos;

  private Command(String name, List<byte[]> keys, List<byte[]> arguments, long blockNanos) {
    this.name = name;
    this.keys = keys;
    this.arguments = arguments;
    this.blockNanos = blockNanos;
  }

  /** Returns {@code LOCK.verb}, or {@code LOCK.Mverb} for several keys. */
  public static Command of(String verb, List<byte[]> keys, Object... arguments) {
    List<byte[]> words = new ArrayList<>(arguments.length + 8);
    for (Object argument : arguments) {
      words.add(argument instanceof byte[] bytes ? bytes : argument.toString().getBytes(UTF_8));
    }
    return new Command((keys.size() == 1 ? "LOCK." : "LOCK.M") + verb, keys, words, 0);
  }

  /** Returns this command, which blocks its connection for a time. */
  public Command blocking(long nanos) {
    return new Command(name, keys, arguments, nanos);
  }

  /** Returns the name of the command, for example {@code LOCK.ACQUIRE}. */
  public String name() {
    return name;
  }

  /** Returns the keys. A cluster finds the node by the first one. */
  public List<byte[]> keys() {
    return keys;
  }

  /** Returns the words after the keys. */
  public List<byte[]> arguments() {
    return arguments;
  }

  /** Returns true if the server may reply late on purpose. */
  public boolean blocks() {
    return blockNanos > 0;
  }

  /** Returns the time for which the server may withhold the reply. */
  public long blockNanos() {
    return blockNanos;
  }

  @Override
  public String toString() {
    return name;
  }
}
