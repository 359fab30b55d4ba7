package io.github.redislock.lettuce;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.netty.buffer.ByteBuf;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** A command that counts how often Lettuce sent it: again after a lost connection or MOVED. */
final class Sent extends Command<byte[], byte[], List<Object>> {
  private final AtomicInteger times = new AtomicInteger();

  private record Name(String word) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return word.getBytes(UTF_8);
    }
  }

  Sent(io.github.redislock.spi.Command command) {
    super(new Name(command.name()), new NestedMultiOutput<>(ByteArrayCodec.INSTANCE),
        wordsOf(command));
  }

  private static CommandArgs<byte[], byte[]> wordsOf(io.github.redislock.spi.Command command) {
    CommandArgs<byte[], byte[]> words = new CommandArgs<>(ByteArrayCodec.INSTANCE);
    for (byte[] word : command.words()) {
      if (word == command.key()) words.addKey(word);
      else words.add(word);
    }
    return words;
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
