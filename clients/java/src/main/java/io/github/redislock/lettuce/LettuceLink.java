package io.github.redislock.lettuce;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.CompletableFuture.completedFuture;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * Locks on Lettuce: one connection for all commands that the server answers at once, and
 * connections apart for waits and sessions. The link opens them from the client, so it needs none
 * of the program's: the first one as soon as it is made.
 */
public final class LettuceLink implements Link {
  /** The longest time that closing takes its caller. */
  private static final long CLOSING_MS = 500;

  private final Shared shared;
  private final Lent lent;

  /** Makes a link to one server, or to the primary that Sentinel names. */
  public LettuceLink(RedisClient client) {
    Supplier<StatefulConnection<byte[], byte[]>> opened =
        () -> unlimited(client.connect(ByteArrayCodec.INSTANCE));
    lent = new Lent(opened, this::suspect);
    // After a failover no wait stays at the old primary.
    shared = new Shared(opened, one -> completedFuture(null), lent::restart);
    shared.begin();
  }

  /** Makes a link to a cluster. */
  public LettuceLink(RedisClusterClient client) {
    Supplier<StatefulConnection<byte[], byte[]>> opened =
        () -> unlimited(client.connect(ByteArrayCodec.INSTANCE));
    Nodes nodes = new Nodes(client);
    lent = new Lent(opened, this::suspect);
    shared = new Shared(opened,
        all -> nodes.ask((StatefulRedisClusterConnection<byte[], byte[]>) all), lent::closeIdle);
    shared.begin();
  }

  /** Takes the client's timeout off, because each call has its own, and a wait may be longer. */
  private static StatefulConnection<byte[], byte[]> unlimited(
      StatefulConnection<byte[], byte[]> connection) {
    connection.setTimeout(Duration.ZERO);
    return connection;
  }

  @Override
  public @Nullable Object send(Command command, Call call, long until)
      throws InterruptedException {
    // The release of a wait that is granted after an outage finds a connection.
    shared.begin();
    return command.blocks() || call.tie() != null
        ? lent.exchange(command, call, until, on -> exchange(on, command, call, until))
        : shared.exchange(call, until, on -> exchange(on, command, call, until));
  }

  private void suspect(Call call, long sentAt) {
    shared.suspect(call, sentAt);
  }

  private static @Nullable Object exchange(
      StatefulConnection<byte[], byte[]> connection, Command command, Call call, long until)
      throws InterruptedException {
    if (connection instanceof StatefulRedisClusterConnection<byte[], byte[]> all) {
      connect(all, command, call, until);
    }
    CommandArgs<byte[], byte[]> words = new CommandArgs<>(ByteArrayCodec.INSTANCE);
    if (command.keys().size() > 1) words.add(command.keys().size());
    command.keys().forEach(words::addKey);
    command.arguments().forEach(words::add);
    Sent sent = new Sent(new Name(command.name()), new Reply(), words);
    AsyncCommand<byte[], byte[], Object> reply = new AsyncCommand<>(sent);
    connection.dispatch(reply);
    try {
      return call.await(reply, until, Failures::told);
    } finally {
      reply.cancel(true);
      for (int lost = sent.repeats(); lost > 0; lost--) call.sends();
    }
  }

  /** Waits for the connection to a node. Until then a client may reject commands. */
  private static void connect(
      StatefulRedisClusterConnection<byte[], byte[]> all, Command command, Call call, long until)
      throws InterruptedException {
    int slot = SlotHash.getSlot(command.keys().get(0));
    RedisClusterNode node = all.getPartitions().getPartitionBySlot(slot);
    if (node == null) return;
    String host = node.getUri().getHost();
    int port = node.getUri().getPort();
    call.asks(host + ":" + port);
    call.await(all.getConnectionAsync(host, port), until, Failures::told);
  }

  @Override
  public void close() {
    lent.close();
    try {
      // The shutdown of a client warns of connections that are just being closed.
      shared.close().get(CLOSING_MS, TimeUnit.MILLISECONDS);
    } catch (ExecutionException | TimeoutException open) {
      // It goes on in the background.
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
    }
  }

  private record Name(String word) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return word.getBytes(UTF_8);
    }
  }
}
