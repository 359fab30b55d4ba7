package io.github.redislock.lettuce;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Link;
import io.lettuce.core.RedisClient;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.AsyncCommand;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/**
 * Locks on Lettuce: every command has a connection to itself, so a wait may block in LOCK.WAIT. The
 * link opens its connections from the client, the first one as soon as it is made.
 */
public final class LettuceLink implements Link {
  private final Connections connections;

  /** Makes a link to one server, or to the primary that Sentinel names. */
  public LettuceLink(RedisClient client) {
    this(new Connections(
        () -> client.connect(ByteArrayCodec.INSTANCE), StatefulConnection::closeAsync));
  }

  /** Makes a link to a cluster. */
  public LettuceLink(RedisClusterClient client) {
    this(new Connections(() -> client.connect(ByteArrayCodec.INSTANCE), Nodes::lookAndClose));
  }

  private LettuceLink(Connections connections) {
    this.connections = connections;
    connections.begin();
  }

  @Override
  public @Nullable Object send(Command command, Call call, long until)
      throws InterruptedException {
    return connections.exchange(command, call, until, on -> exchange(on, command, call, until));
  }

  private static @Nullable Object exchange(
      StatefulConnection<byte[], byte[]> connection, Command command, Call call, long until)
      throws InterruptedException {
    if (connection instanceof StatefulRedisClusterConnection<byte[], byte[]> all) {
      connect(all, command, call, until);
    }
    Sent sent = new Sent(command);
    AsyncCommand<byte[], byte[], List<Object>> reply = new AsyncCommand<>(sent);
    connection.dispatch(reply);
    try {
      List<Object> words = call.await(reply, until);
      if (words.size() > 1) return words;
      // The output makes a list of every reply.
      return words.isEmpty() ? null : words.get(0);
    } finally {
      reply.cancel(true);
      call.repeated(sent.repeats());
    }
  }

  /** Waits for the connection to a node. Until then a client may reject commands. */
  private static void connect(
      StatefulRedisClusterConnection<byte[], byte[]> all, Command command, Call call, long until)
      throws InterruptedException {
    int slot = SlotHash.getSlot(command.key());
    RedisClusterNode node = all.getPartitions().getPartitionBySlot(slot);
    if (node == null) return;
    String host = node.getUri().getHost();
    int port = node.getUri().getPort();
    call.asks(host + ":" + port);
    CompletableFuture<?> connected;
    try {
      connected = all.getConnectionAsync(host, port);
    } catch (NullPointerException closing) {
      throw Fault.outage(closing);
    }
    call.await(connected, until);
  }

  @Override
  public void close() {
    connections.close();
    connections.awaitClosed();
  }
}
