package io.github.redislock.lettuce;

import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.netty.buffer.ByteBuf;

/** A command that counts how often Lettuce sent it again after a lost connection. */
final class Sent extends Command<byte[], byte[], Object> {
  private final Reply reply;
  /** True if the command was sent, and no reply came yet. */
  private boolean isUnanswered;
  private volatile int repeats;

  Sent(ProtocolKeyword name, Reply reply, CommandArgs<byte[], byte[]> words) {
    super(name, reply, words);
    this.reply = reply;
  }

  /** Returns how often the command was sent though the reply to the one before was lost. */
  int repeats() {
    return repeats;
  }

  @Override
  public synchronized void encode(ByteBuf buffer) {
    // A node of a cluster replies where the command belongs, before it is sent there.
    if (reply.takeRefusal()) isUnanswered = false;
    if (isUnanswered) repeats++;
    isUnanswered = true;
    super.encode(buffer);
  }
}
