package io.github.redislock.lettuce;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.ServerError;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/**
 * Locks on Lettuce: all tasks share one connection, and wait by LOCK.QUEUE with NOTIFY on another one.
 * The link opens both from the client, so it needs none of the program's: the first one as soon as it is
 * made. If a connection is silent, the link opens another one at once, whatever the client's pauses
 * between reconnects are.
 */
public final class LettuceLink implements Link {
  /** The longest time that closing takes its caller. */
  private static final Duration CLOSING = Duration.ofMillis(500);
  /** The errors of a server that isn't a primary, or not any more. */
  private static final Set<String> OF_REPLICAS = Set.of("READONLY", "MASTERDOWN");

  private final Supplier<LettuceLink> another;
  private final boolean isCluster;
  private final Topology topology;
  private final Kept<StatefulConnection<byte[], byte[]>> commands;
  private final Turns turns;
  /** The silence at each slot, because one node of a cluster may be silent while others reply. */
  private final Map<Integer, Silence> silences = new ConcurrentHashMap<>();

  /** Makes a link to one server, or to the primary that Sentinel names. */
  public LettuceLink(RedisClient client) {
    this(client, Kept::new);
  }

  private LettuceLink(RedisClient client, Keeping keeping) {
    another = () -> new LettuceLink(client, KeptForSession::new);
    isCluster = false;
    topology = connection -> CompletableFuture.completedFuture(false);
    commands = keeping.of(() -> client.connect(ByteArrayCodec.INSTANCE));
    turns = new Turns(new Kept<>(() -> client.connectPubSub(ByteArrayCodec.INSTANCE)), false);
    commands.get();
  }

  /** Makes a link to a cluster. */
  public LettuceLink(RedisClusterClient client) {
    this(client, Kept::new);
  }

  private LettuceLink(RedisClusterClient client, Keeping keeping) {
    another = () -> new LettuceLink(client, KeptForSession::new);
    isCluster = true;
    topology = connection -> new Nodes(client, (StatefulRedisClusterConnection<byte[], byte[]>) connection).ask();
    commands = keeping.of(() -> client.connect(ByteArrayCodec.INSTANCE));
    Kept<StatefulRedisPubSubConnection<byte[], byte[]>> messages =
        new Kept<>(() -> client.connectPubSub(ByteArrayCodec.INSTANCE));
    turns = new Turns(messages, true);
    commands.get();
  }

  @Override
  public CompletableFuture<Object> send(Command command, Duration limit) {
    CompletableFuture<Object> reply = new CompletableFuture<>();
    CompletableFuture<StatefulConnection<byte[], byte[]>> opened = commands.get();
    Silence silence = silenceOf(command);
    long sentNanos = silence.sent();
    opened.whenComplete((connection, refused) -> {
      if (refused != null) reply.completeExceptionally(told(refused));
      else if (!reply.isDone()) dispatch(connection, command, reply);
    });
    reply.whenComplete((value, error) -> {
      if (error == null || error instanceof ServerError) silence.replied();
      if (error == null) commands.replied(opened);
      else if (error instanceof ServerError refusal) replaceIfReplica(opened, refusal);
      else if (error instanceof TimeoutException && silence.isLong(sentNanos) || Kept.isLost(opened)) replace(opened);
      else if (isUnreachable(error)) follow(opened);
    });
    return reply.orTimeout(Math.max(limit.toMillis(), 1), TimeUnit.MILLISECONDS);
  }

  @Override
  public Optional<Turn> turn(byte[] key, Runnable announced) {
    return Optional.of(turns.take(key, announced));
  }

  @Override
  public CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
    throw new UnsupportedOperationException("a shared connection can't block");
  }

  @Override
  public Link own() {
    return another.get();
  }

  @Override
  public void close() {
    CompletableFuture<?> closed = CompletableFuture.allOf(commands.close(), turns.close());
    try {
      // The shutdown of a client warns of connections that are just being closed.
      closed.get(CLOSING.toMillis(), TimeUnit.MILLISECONDS);
    } catch (ExecutionException | TimeoutException open) {
      // It goes on in the background.
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
    }
  }

  private void dispatch(
      StatefulConnection<byte[], byte[]> connection, Command command, CompletableFuture<Object> reply) {
    CommandArgs<byte[], byte[]> words = new CommandArgs<>(ByteArrayCodec.INSTANCE);
    if (command.keys().size() > 1) words.add(command.keys().size());
    command.keys().forEach(words::addKey);
    command.arguments().forEach(words::add);
    AsyncCommand<byte[], byte[], Object> sent =
        new AsyncCommand<>(new io.lettuce.core.protocol.Command<>(new Name(command.name()), new Reply(), words));
    reply.whenComplete((value, error) -> sent.cancel(true));
    sent.whenComplete((value, error) -> {
      if (error == null) reply.complete(value);
      else reply.completeExceptionally(told(error));
    });
    connection.dispatch(sent);
  }

  private Silence silenceOf(Command command) {
    int slot = isCluster ? SlotHash.getSlot(command.keys().get(0)) : 0;
    return silences.computeIfAbsent(slot, first -> new Silence());
  }

  /** Returns true if no connection could be opened: in a cluster to one node, while the others reply. */
  private static boolean isUnreachable(Throwable error) {
    return error instanceof RedisConnectionException || error.getCause() instanceof RedisConnectionException;
  }

  /** Connects again after the reply of a replica: the server's name may lead to the new primary by now. */
  private void replaceIfReplica(CompletableFuture<StatefulConnection<byte[], byte[]>> replica, ServerError refusal) {
    if (!OF_REPLICAS.contains(refusal.code())) return;
    commands.drop(replica);
    turns.replace();
  }

  /** Looks for the node that has taken over from a silent one, else replaces the connections. */
  private void replace(CompletableFuture<StatefulConnection<byte[], byte[]>> silent) {
    silences.values().forEach(Silence::end);
    isMoved(silent).thenAccept(moved -> {
      if (!moved) commands.drop(silent);
      turns.replace();
    });
  }

  /** Looks for the node that has taken over from one that can't be reached. The connections to the others stay. */
  private void follow(CompletableFuture<StatefulConnection<byte[], byte[]>> opened) {
    isMoved(opened).thenAccept(moved -> {
      if (moved) turns.replace();
    });
  }

  private CompletableFuture<Boolean> isMoved(CompletableFuture<StatefulConnection<byte[], byte[]>> opened) {
    CompletableFuture<Boolean> moved = opened.isDone()
        ? opened.thenCompose(topology::ask)
        : CompletableFuture.completedFuture(false);
    return moved.exceptionally(unknown -> false);
  }

  /** A way to keep the connection for commands. */
  private interface Keeping {
    Kept<StatefulConnection<byte[], byte[]>> of(Supplier<StatefulConnection<byte[], byte[]>> opened);
  }

  /** The nodes of a cluster, by which a silent one is left. */
  private interface Topology {
    /** Returns true if the other nodes know that a slot has moved. */
    CompletableFuture<Boolean> ask(StatefulConnection<byte[], byte[]> connection);
  }

  /** Returns the error reply of the server, if there was one. */
  static Throwable told(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof RedisCommandExecutionException reply) return new ServerError(reply.getMessage(), null);
      // Each node of a cluster may have replied with an error.
      for (Throwable also : cause.getSuppressed()) {
        if (told(also) instanceof ServerError reply) return reply;
      }
    }
    return error;
  }

  private record Name(String word) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return word.getBytes(UTF_8);
    }
  }
}
