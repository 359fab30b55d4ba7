package io.github.redislock.jedis;

import io.github.redislock.spi.Background;
import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import java.lang.reflect.Field;
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
  /** Null if the client knows no cluster. */
  private final @Nullable ClusterConnectionProvider cluster;
  /** Our connections beside each pool of the program. */
  private final Map<Pool<Connection>, Node> nodes = new ConcurrentHashMap<>();
  private final Runnable closing;
  private volatile boolean isClosed;

  /** Makes the servers of a provider, which {@code closing} closes. */
  Servers(ConnectionProvider provider, Runnable closing) {
    this.provider = provider;
    this.closing = closing;
    cluster = provider instanceof ClusterConnectionProvider nodes ? nodes : null;
    if (cluster == null) pool();
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
    if (cluster == null) return ofPrimary();
    HostAndPort address = cluster.getNode(JedisClusterCRC16.getSlot(command.key()));
    if (address == null) throw Fault.outage("no node is known to have the slot");
    return at(address, call);
  }

  private Node ofPrimary() {
    Pool<Connection> current = pool();
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
    HostAndPort address = redirection.getTargetNode();
    CompletableFuture<Void> refreshed = refresh();
    if (!cluster.getNodes().containsKey(address.toString())) call.await(refreshed, until);
    return at(address, call);
  }

  private Node at(HostAndPort address, Call call) {
    call.asks(address.toString());
    Pool<Connection> pool = cluster.getNodes().get(address.toString());
    if (pool == null) throw Fault.outage("the cluster doesn't know " + address);
    return node(pool);
  }

  private Node node(Pool<Connection> pool) {
    Node node = nodes.computeIfAbsent(pool, Node::new);
    if (isClosed) node.close();
    return node;
  }

  /** Returns the pool of the server, or of the primary that the program's client knows now. */
  @SuppressWarnings("unchecked")
  private Pool<Connection> pool() {
    if (provider instanceof PooledConnectionProvider pooled) return pooled.getPool();
    if (provider instanceof SentineledConnectionProvider) {
      // Jedis has a method for it since version 8.
      return (Pool<Connection>) hidden(SentineledConnectionProvider.class, "pool", provider);
    }
    throw new IllegalArgumentException(
        "this kind of Jedis isn't supported: " + provider.getClass().getName());
  }

  /** Has the client of a cluster look for its slots in the background: silent nodes take long. */
  CompletableFuture<Void> refresh() {
    if (cluster == null) return CompletableFuture.completedFuture(null);
    return CompletableFuture.runAsync(cluster::renewSlotCache, Background.THREADS)
        .exceptionally(unreachable -> null);
  }

  void close() {
    isClosed = true;
    nodes.values().forEach(Node::close);
    closing.run();
  }
}
