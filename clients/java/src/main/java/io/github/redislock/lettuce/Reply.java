package io.github.redislock.lettuce;

import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** A reply: null, a number, bytes, or a list of these. */
final class Reply extends CommandOutput<byte[], byte[], Object> {
  private List<Object> list;

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
    if (count > 0) output = list = new ArrayList<>(count);
  }

  private void add(Object value) {
    if (list != null) list.add(value);
    else output = value;
  }
}
