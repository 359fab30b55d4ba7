package io.github.redislock.jedis;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.ServerError;
import java.lang.reflect.Field;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisRedirectionException;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.providers.SentineledConnectionProvider;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.Pool;

/** The servers of the program's Jedis. After a failover its Sentinels give it another pool. */
final class Servers {
  private final ConnectionProvider provider;
  /** Our connections beside each pool of the program. */
  private final Map<Pool<Connection>, Node> nodes = new ConcurrentHashMap<>();
  private @Nullable CompletableFuture<Void> refreshing;
  private volatile boolean isClosed;

  Servers(ConnectionProvider provider) {
    this.provider = provider;
    pools();
  }

  /** Returns what makes the connections of a client. Jedis has no method that does. */
  static ConnectionProvider providerOf(UnifiedJedis jedis) {
    return (ConnectionProvider) hidden(UnifiedJedis.class, "provider", jedis);
  }

  private static Object hidden(Class<?> type, String name, Object object) {
    try {
      Field field = type.getDeclaredField(name);
      field.setAccessible(true);
      return field.get(object);
    } catch (ReflectiveOperationException | RuntimeException hidden) {
      throw new IllegalArgumentException(
          "this Jedis hides its connections: give JedisLink a ConnectionProvider", hidden);
    }
  }

  /** Returns the connections to the server of a command's first key. */
  Node of(Command command, Call call) {
    if (provider instanceof ClusterConnectionProvider cluster) {
      HostAndPort address = cluster.getNode(JedisClusterCRC16.getSlot(command.keys().get(0)));
      Node node = address == null ? null : at(cluster, address);
      if (node != null) {
        call.asks(address.toString());
        return node;
      }
      refresh();
      throw unknown("no node is known to have the slot");
    }
    Pool<Connection> current = pools().iterator().next();
    // After a failover no connection leads to the old primary.
    for (Pool<Connection> pool : nodes.keySet()) {
      Node superseded = pool == current ? null : nodes.remove(pool);
      if (superseded != null) superseded.close();
    }
    return node(current);
  }

  /** Returns the connections to the node that a redirection names. */
  Node at(JedisRedirectionException redirection, Call call, long until)
      throws InterruptedException {
    ClusterConnectionProvider cluster = (ClusterConnectionProvider) provider;
    HostAndPort address = redirection.getTargetNode();
    CompletableFuture<?> refreshed = refresh();
    if (at(cluster, address) == null) call.await(refreshed, until, Node::told);
    Node node = at(cluster, address);
    if (node == null) throw unknown("the cluster doesn't know " + address);
    call.asks(address.toString());
    return node;
  }

  private static OutageException unknown(String text) {
    return OutageException.failed(new IllegalStateException(text));
  }

  private @Nullable Node at(ClusterConnectionProvider cluster, HostAndPort address) {
    Pool<Connection> pool = cluster.getNodes().get(address.toString());
    return pool == null ? null : node(pool);
  }

  private Node node(Pool<Connection> pool) {
    Node node = nodes.computeIfAbsent(pool, Node::new);
    if (isClosed) node.close();
    return node;
  }

  /** Returns the pools of the servers that the program's client knows now. */
  private Collection<? extends Pool<Connection>> pools() {
    if (provider instanceof ClusterConnectionProvider cluster) return cluster.getNodes().values();
    if (provider instanceof PooledConnectionProvider pooled) return List.of(pooled.getPool());
    if (provider instanceof SentineledConnectionProvider sentineled) {
      return List.of(primaryOf(sentineled));
    }
    throw new IllegalArgumentException(
        "this kind of Jedis isn't supported: " + provider.getClass().getName());
  }

  /** Returns the pool of the primary. Jedis has a method that does since version 8. */
  @SuppressWarnings("unchecked")
  private static Pool<Connection> primaryOf(SentineledConnectionProvider provider) {
    return (Pool<Connection>) hidden(SentineledConnectionProvider.class, "pool", provider);
  }

  /** Has the client look for its slots anew if a reply says that nobody serves them. */
  ServerError noted(ServerError reply) {
    if (reply.code().equals("CLUSTERDOWN")) refresh();
    return reply;
  }

  /** Has the client of a cluster look for its slots in the background: silent nodes take long. */
  synchronized CompletableFuture<Void> refresh() {
    if (!(provider instanceof ClusterConnectionProvider cluster)) {
      return CompletableFuture.completedFuture(null);
    }
    if (refreshing == null || refreshing.isDone()) {
      refreshing = CompletableFuture.runAsync(cluster::renewSlotCache, Background::run);
    }
    return refreshing;
  }

  void close() {
    isClosed = true;
    nodes.values().forEach(Node::close);
  }
}
