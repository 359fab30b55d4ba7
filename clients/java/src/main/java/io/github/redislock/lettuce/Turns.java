package io.github.redislock.lettuce;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Link.Turn;
import io.github.redislock.spi.ServerError;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;

/** The turns of all waits, which one connection hears announced. */
final class Turns {
  private static final SecureRandom RANDOM = new SecureRandom();
  /** A hash tag for each slot of a cluster. */
  private static final Map<Integer, String> TAGS = new ConcurrentHashMap<>();

  private final Kept<StatefulRedisPubSubConnection<byte[], byte[]>> messages;
  private final boolean isCluster;
  private final String id = random();
  private final Map<String, Runnable> waiting = new ConcurrentHashMap<>();
  private final Map<String, Subscription> channels = new ConcurrentHashMap<>();

  /** A subscription on a connection. */
  private record Subscription(
      CompletableFuture<StatefulRedisPubSubConnection<byte[], byte[]>> on, CompletableFuture<Void> listening) {
    boolean lasts(CompletableFuture<StatefulRedisPubSubConnection<byte[], byte[]>> current) {
      return on == current && !listening.isCompletedExceptionally();
    }
  }

  Turns(Kept<StatefulRedisPubSubConnection<byte[], byte[]>> messages, boolean isCluster) {
    this.messages = messages;
    this.isCluster = isCluster;
  }

  Turn take(byte[] key, Runnable announced) {
    String channel = isCluster ? "redis-lock:" + id + ":{" + tagOf(key) + "}" : "redis-lock:" + id;
    // The message isn't the token, because every subscriber can read it.
    String message = random();
    waiting.put(message, announced);
    return new Turn() {
      @Override
      public List<byte[]> words() {
        listening();
        return List.of(bytes("NOTIFY"), bytes(channel), bytes(message));
      }

      @Override
      public CompletableFuture<Void> listening() {
        return listeningTo(channel);
      }

      @Override
      public void close() {
        waiting.remove(message);
      }
    };
  }

  /** Listens on another connection from now on. */
  void replace() {
    messages.drop();
  }

  CompletableFuture<?> close() {
    return messages.close();
  }

  /** Returns the subscription, which begins anew on another connection and after a failure. */
  private CompletableFuture<Void> listeningTo(String channel) {
    // Lettuce may not reopen it, or not soon.
    if (Kept.isLost(messages.get())) messages.drop();
    CompletableFuture<StatefulRedisPubSubConnection<byte[], byte[]>> opened = messages.get();
    return channels.compute(channel, (name, before) -> before != null && before.lasts(opened)
        ? before
        : new Subscription(opened, listen(opened, name))).listening;
  }

  private CompletableFuture<Void> listen(
      CompletableFuture<StatefulRedisPubSubConnection<byte[], byte[]>> opened, String channel) {
    CompletableFuture<Void> listening = opened.thenCompose(connection -> {
      synchronized (connection) {
        connection.removeListener(ear);
        connection.addListener(ear);
      }
      byte[] name = bytes(channel);
      return isCluster ? connection.async().ssubscribe(name) : connection.async().subscribe(name);
    });
    return listening.handle((done, error) -> {
      if (error == null) return null;
      if (LettuceLink.told(error) instanceof ServerError refused) throw refused;
      throw new IllegalStateException("no messages from the server", error);
    });
  }

  private final RedisPubSubAdapter<byte[], byte[]> ear = new RedisPubSubAdapter<>() {
    @Override
    public void message(byte[] channel, byte[] message) {
      Runnable announced = waiting.get(new String(message, UTF_8));
      if (announced != null) announced.run();
    }

    @Override
    public void smessage(byte[] channel, byte[] message) {
      message(channel, message);
    }

    // After a (new) connection a message may have been missed.
    @Override
    public void subscribed(byte[] channel, long count) {
      waiting.values().forEach(Runnable::run);
    }

    @Override
    public void ssubscribed(byte[] channel, long count) {
      waiting.values().forEach(Runnable::run);
    }
  };

  private static String tagOf(byte[] key) {
    int slot = SlotHash.getSlot(key);
    for (int next = TAGS.size(); !TAGS.containsKey(slot); next++) {
      TAGS.putIfAbsent(SlotHash.getSlot("" + next), "" + next);
    }
    return TAGS.get(slot);
  }

  private static String random() {
    byte[] bits = new byte[8];
    RANDOM.nextBytes(bits);
    return HexFormat.of().formatHex(bits);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(UTF_8);
  }
}
