package io.github.redislock.lettuce;

import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** A reply: null, a number, bytes, or a list of replies. A map is a list of names and values. */
final class Reply extends CommandOutput<byte[], byte[], Object> {
  /** The lists that aren't complete, the innermost first. */
  private final Deque<List<Object>> open = new ArrayDeque<>();

  Reply() {
    super(ByteArrayCodec.INSTANCE, null);
  }

  @Override
  public void set(ByteBuffer bytes) {
    add(bytes == null ? null : ByteArrayCodec.INSTANCE.decodeValue(bytes));
  }

  @Override
  public void set(long number) {
    add(number);
  }

  @Override
  public void multi(int count) {
    List<Object> list = count < 0 ? null : new ArrayList<>(count);
    add(list);
    if (list != null) open.push(list);
  }

  @Override
  public void complete(int depth) {
    while (open.size() > depth) open.pop();
  }

  private void add(Object value) {
    if (open.isEmpty()) output = value;
    else open.peek().add(value);
  }
}
