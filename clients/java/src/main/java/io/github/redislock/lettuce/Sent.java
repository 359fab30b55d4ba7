package io.github.redislock.lettuce;

import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.netty.buffer.ByteBuf;
import java.util.concurrent.atomic.AtomicInteger;

/** A command that counts how often Lettuce sent it: again after a lost connection or MOVED. */
final class Sent extends Command<byte[], byte[], Object> {
  private final AtomicInteger times = new AtomicInteger();

  Sent(ProtocolKeyword name, CommandArgs<byte[], byte[]> words) {
    super(name, new Reply(), words);
  }

  /** Returns how many commands may still arrive beside the latest one. */
  int repeats() {
    return times.get() - 1;
  }

  @Override
  public void encode(ByteBuf buffer) {
    times.incrementAndGet();
    super.encode(buffer);
  }
}
