package io.github.redislock.jedis;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Command;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisAskDataException;
import redis.clients.jedis.exceptions.JedisClusterOperationException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisRedirectionException;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.providers.SentineledConnectionProvider;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.Pool;

/**
 * The connections of one link, made like those of the program's pools but not taken from them. An idle
 * connection is used again only while the pool of its node is the current one: after a failover none
 * leads to the old primary.
 */
class Connections {
  private static final int MOST_REDIRECTIONS = 5;
  private static final int ASKING_MS = 1000;
  /** The errors of a server that isn't a primary, or not any more. */
  private static final Set<String> OF_REPLICAS = Set.of("READONLY", "MASTERDOWN");
  /** The idle connections to a node that are kept. */
  private static final int MOST_IDLE = 8;
  private static final Executor REFRESHES = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "redis-lock-jedis-nodes");
    thread.setDaemon(true);
    return thread;
  });

  /** An exchange over a connection to the node of a command. */
  interface Exchange {
    Object run(Pool<Connection> node, Connection connection);
  }

  private final Opening opening;
  private final Map<Pool<Connection>, Queue<Connection>> idle = new ConcurrentHashMap<>();
  private volatile boolean isClosed;
  private final AtomicBoolean isRefreshing = new AtomicBoolean();

  Connections(Opening opening) {
    this.opening = opening;
  }

  Opening opening() {
    return opening;
  }

  /** Returns the program's provider, for which the caller has waited. */
  private ConnectionProvider provider() {
    return opening.get().join();
  }

  static ConnectionProvider checked(ConnectionProvider provider) {
    poolsOf(provider);
    return provider;
  }

  /** Returns the pools of the nodes that the program's client knows now. */
  private static Collection<? extends Pool<Connection>> poolsOf(ConnectionProvider provider) {
    if (provider instanceof ClusterConnectionProvider cluster) return cluster.getNodes().values();
    if (provider instanceof PooledConnectionProvider pooled) return List.of(pooled.getPool());
    if (provider instanceof SentineledConnectionProvider sentineled) return List.of(primaryOf(sentineled));
    throw new IllegalArgumentException("this kind of Jedis isn't supported: " + provider.getClass().getName());
  }

  /** Returns the pool of the primary. Jedis has a method that does since version 8. */
  @SuppressWarnings("unchecked")
  private static Pool<Connection> primaryOf(SentineledConnectionProvider provider) {
    try {
      Field pool = SentineledConnectionProvider.class.getDeclaredField("pool");
      pool.setAccessible(true);
      return (Pool<Connection>) pool.get(provider);
    } catch (ReflectiveOperationException | RuntimeException hidden) {
      throw new IllegalArgumentException("this Jedis hides its connections", hidden);
    }
  }

  /** Runs an exchange at the node of a command, and again where the server redirects it. */
  Object redirected(Command command, Exchange exchange) throws Exception {
    Pool<Connection> node = nodeOf(command);
    boolean isAsking = false;
    for (int redirections = 0; ; redirections++) {
      try {
        return at(node, isAsking, exchange);
      } catch (JedisRedirectionException elsewhere) {
        if (redirections == MOST_REDIRECTIONS) throw elsewhere;
        isAsking = elsewhere instanceof JedisAskDataException;
        node = nodeAt(elsewhere.getTargetNode(), isAsking);
      }
    }
  }

  /** Sends PING. */
  void probe(Pool<Connection> node, int timeoutMs) throws Exception {
    at(node, false, (same, connection) -> {
      connection.setSoTimeout(timeoutMs);
      return connection.executeCommand(Protocol.Command.PING);
    });
  }

  /** Returns true if the program's client still uses this pool, by what it knows of the primary. */
  boolean isCurrent(Pool<Connection> node) {
    return poolsOf(provider()).contains(node);
  }

  void close() {
    isClosed = true;
    idle.values().forEach(Connections::closed);
  }

  boolean isClosed() {
    return isClosed;
  }

  /** Closes a connection that isn't used any more. */
  void leave(Connection connection) {
    connection.close();
  }

  /** Notes that a command had its reply. */
  void replied() {}

  private Object at(Pool<Connection> node, boolean isAsking, Exchange exchange) throws Exception {
    Queue<Connection> ready = idle.computeIfAbsent(node, of -> new ConcurrentLinkedQueue<>());
    Connection connection = openOf(ready);
    if (connection == null) connection = opened(node);
    try {
      if (isAsking) ask(connection);
      Object reply = exchange.run(node, connection);
      replied();
      return reply;
    } catch (JedisConnectionException lost) {
      leaveAll(connection, ready);
      refreshLater();
      throw lost;
    } catch (JedisDataException error) {
      String code = String.valueOf(error.getMessage()).split(" ", 2)[0];
      // The name of the server may lead to the new primary by now.
      if (OF_REPLICAS.contains(code)) leaveAll(connection, ready);
      if (code.equals("CLUSTERDOWN")) refreshLater();
      throw error;
    } finally {
      if (connection.isBroken() || isClosed || ready.size() >= MOST_IDLE || !isCurrent(node)) leave(connection);
      else keep(connection, ready);
    }
  }

  private static void ask(Connection connection) {
    // A wait before it may have left none.
    connection.setSoTimeout(ASKING_MS);
    connection.executeCommand(Protocol.Command.ASKING);
  }

  private void keep(Connection connection, Queue<Connection> ready) {
    ready.add(connection);
    if (isClosed) closed(ready);
  }

  private Connection opened(Pool<Connection> node) throws Exception {
    try {
      return node.getFactory().makeObject().getObject();
    } catch (JedisConnectionException unreachable) {
      refreshLater();
      throw unreachable;
    }
  }

  /** Returns an idle connection that is open, or null: Jedis would reopen a closed one without AUTH and SELECT. */
  private static Connection openOf(Queue<Connection> ready) {
    Connection connection = ready.poll();
    while (connection != null && (connection.isBroken() || !connection.isConnected())) connection = ready.poll();
    return connection;
  }

  /** Leaves a connection, and the idle ones, which may have died with it. */
  private void leaveAll(Connection connection, Queue<Connection> ready) {
    connection.setBroken();
    for (Connection other; (other = ready.poll()) != null; ) leave(other);
  }

  private Pool<Connection> nodeOf(Command command) {
    idle.keySet().removeIf(node -> !isCurrent(node) && closed(idle.get(node)));
    if (provider() instanceof ClusterConnectionProvider cluster) {
      HostAndPort node = cluster.getNode(JedisClusterCRC16.getSlot(command.keys().get(0)));
      if (node == null) {
        refresh();
        throw new JedisClusterOperationException("no node of the cluster serves the slot");
      }
      return cluster.getNodes().get(node.toString());
    }
    return poolsOf(provider()).iterator().next();
  }

  private Pool<Connection> nodeAt(HostAndPort target, boolean isAsking) {
    ClusterConnectionProvider cluster = (ClusterConnectionProvider) provider();
    if (!isAsking) refresh();
    if (!cluster.getNodes().containsKey(target.toString())) cluster.getConnection(target).close();
    return cluster.getNodes().get(target.toString());
  }

  /** Asks for the nodes of a cluster, without the caller: silent ones take seconds. */
  private void refreshLater() {
    if (!(provider() instanceof ClusterConnectionProvider) || !isRefreshing.compareAndSet(false, true)) return;
    REFRESHES.execute(() -> {
      try {
        refresh();
      } catch (JedisException silent) {
        // The next lost or refused connection asks again.
      } finally {
        isRefreshing.set(false);
      }
    });
  }

  private void refresh() {
    if (provider() instanceof ClusterConnectionProvider cluster) cluster.renewSlotCache();
  }

  private static boolean closed(Queue<Connection> queue) {
    // Polled first, so that no command finds a closed one.
    for (Connection left; queue != null && (left = queue.poll()) != null; ) left.close();
    return true;
  }

  /** Returns the words after the name. */
  static byte[][] wordsOf(Command command) {
    List<byte[]> words = new ArrayList<>();
    if (command.keys().size() > 1) words.add(("" + command.keys().size()).getBytes(UTF_8));
    words.addAll(command.keys());
    words.addAll(command.arguments());
    return words.toArray(byte[][]::new);
  }
}
