package io.github.redislock.spi;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;

/** A lock command. Its text form shows the name alone, because the arguments contain the token. */
public final class Command {
  private final String name;
  private final List<byte[]> keys;
  private final List<byte[]> arguments;

  private Command(String name, List<byte[]> keys, List<byte[]> arguments) {
    this.name = name;
    this.keys = keys;
    this.arguments = arguments;
  }

  /** Returns a command for all keys: {@code LOCK.verb}, or {@code LOCK.Mverb} for several keys. */
  public static Command of(String verb, List<byte[]> keys, Object... arguments) {
    List<byte[]> words = new ArrayList<>(arguments.length);
    for (Object argument : arguments) {
      words.add(argument instanceof byte[] bytes ? bytes : argument.toString().getBytes(UTF_8));
    }
    return new Command((keys.size() == 1 ? "LOCK." : "LOCK.M") + verb, keys, words);
  }

  /** Returns this command with more arguments. */
  public Command with(List<byte[]> more) {
    List<byte[]> all = new ArrayList<>(arguments);
    all.addAll(more);
    return new Command(name, keys, all);
  }

  /** Returns the name of the command, for example {@code LOCK.ACQUIRE}. */
  public String name() {
    return name;
  }

  /** Returns the keys, of which a cluster needs the first to find the node. */
  public List<byte[]> keys() {
    return keys;
  }

  /** Returns the arguments after the keys. */
  public List<byte[]> arguments() {
    return arguments;
  }

  @Override
  public String toString() {
    return name;
  }
}
