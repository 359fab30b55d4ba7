package io.github.redislock;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Link;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** A link whose replies a test decides, for locks of one key or two. */
final class ScriptedLink implements Link {
  static final List<Object> GRANT = List.of(1L, 7L);

  final List<String> sent = new CopyOnWriteArrayList<>();
  volatile Script script;

  /** Returns the reply to a command. */
  interface Script {
    Object replyTo(Command command, long until) throws InterruptedException;
  }

  ScriptedLink(Script script) {
    this.script = script;
  }

  /** Returns a link that grants everything at once. */
  static ScriptedLink granting() {
    return new ScriptedLink((command, until) -> granted(command));
  }

  static Object granted(Command command) {
    boolean isAcquire = command.name().matches("LOCK.M?(ACQUIRE|WAIT)");
    boolean isOfTwo = command.name().startsWith("LOCK.M");
    return isAcquire ? GRANT : (Object) (isOfTwo ? 2L : 1L);
  }

  @Override
  public Object send(Command command, Call call, long until) throws InterruptedException {
    StringBuilder words = new StringBuilder(command.name().substring("LOCK.".length()));
    for (byte[] word : command.words().subList(2, command.words().size())) {
      words.append(' ').append(new String(word));
    }
    sent.add(words.toString());
    call.sends();
    try {
      Object reply = script.replyTo(command, until);
      call.answered();
      return reply;
    } catch (Fault fault) {
      if (fault.kind() == Fault.Kind.REPLY) call.answered();
      throw fault;
    }
  }

  /** Returns the commands with this name. */
  List<String> sent(String name) {
    return sent.stream().filter(words -> words.startsWith(name)).toList();
  }

  @Override
  public void close() {}
}
