package io.github.redislock.jedis;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.ServerError;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import redis.clients.jedis.Connection;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.util.Pool;

/**
 * Locks on Jedis: every wait blocks in a LOCK.WAIT with KEEP on a connection that it has to itself. The
 * connections have the settings of the program's Jedis but aren't taken from its pool, so that waits
 * can't exhaust the pool, nor the pool delay renewals. The blocking calls run on threads of this link.
 */
public final class JedisLink implements Link {
  /** The time between two signs of life of a server at which somebody waits. */
  private static final Duration PROBE_EVERY = Duration.ofSeconds(2);
  private static final int PROBE_MS = 1000;

  private final Connections connections;
  private final Map<Connection, Wait> waits = new ConcurrentHashMap<>();
  private final ExecutorService threads = Executors.newCachedThreadPool(work -> {
    Thread thread = new Thread(work, "redis-lock-jedis");
    thread.setDaemon(true);
    return thread;
  });
  /** The servers that are looked after. */
  private final Set<Pool<Connection>> probed = ConcurrentHashMap.newKeySet();

  /** A LOCK.WAIT at a server. One connection may serve several, one after the other. */
  private static final class Wait {
    final Pool<Connection> node;
    final Progress progress;

    Wait(Pool<Connection> node, Progress progress) {
      this.node = node;
      this.progress = progress;
    }
  }

  /** Makes a link to the server, the cluster, or the primary that Sentinel names. */
  public JedisLink(UnifiedJedis jedis) {
    this(providerOf(jedis));
  }

  /** Makes a link over a provider of connections. */
  public JedisLink(ConnectionProvider provider) {
    this(new Connections(new Opening(Connections.checked(provider))));
  }

  /**
   * Makes a link that makes its client in the background, and again at a command if that failed. The
   * clients of a cluster and of Sentinel connect as soon as they are made.
   */
  public JedisLink(Supplier<? extends UnifiedJedis> jedis) {
    this(new Connections(new Opening(() -> Connections.checked(providerOf(jedis.get())))));
    connections.opening().get();
  }

  private JedisLink(Connections connections) {
    this.connections = connections;
  }

  @Override
  public CompletableFuture<Object> send(Command command, Duration limit) {
    Awaited reply = new Awaited();
    int limitMs = millisOf(limit);
    run(reply, () -> connections.redirected(command, (node, connection) -> {
      connection.setSoTimeout(limitMs);
      reply.send(connection, command);
      return flat(connection.getOne());
    }));
    return reply.orTimeout(limitMs, TimeUnit.MILLISECONDS);
  }

  /** Returns a reply with each map of RESP3 as a list of its names and values. */
  private static Object flat(Object reply) {
    if (!(reply instanceof List<?> list)) return reply;
    List<Object> flat = new ArrayList<>(list.size());
    for (Object each : list) {
      if (each instanceof Map.Entry<?, ?> field) {
        flat.add(field.getKey());
        flat.add(flat(field.getValue()));
      } else {
        flat.add(flat(each));
      }
    }
    return flat;
  }

  @Override
  public Optional<Turn> turn(byte[] key, Runnable announced) {
    return Optional.empty();
  }

  @Override
  public CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
    Awaited reply = new Awaited();
    CompletableFuture<Void> sent = new CompletableFuture<>();
    sent.orTimeout(millisOf(attempt), TimeUnit.MILLISECONDS).exceptionally(late -> {
      reply.completeExceptionally(new TimeoutException("no connection within " + attempt.toMillis() + " ms"));
      return null;
    });
    run(reply, () -> connections.redirected(command, (node, connection) -> {
      if (connections.isClosed()) throw closed();
      progress.sending();
      reply.send(connection, command);
      sent.complete(null);
      // The server ends the wait by BLOCK; 0 is without a limit.
      connection.setSoTimeout(limit.isZero() ? 0 : millisOf(limit));
      return read(reply, connection, new Wait(node, progress));
    }));
    return reply;
  }

  /** Reads the reply of a wait, which another thread may end. */
  private Object read(Awaited reply, Connection connection, Wait wait) {
    waits.put(connection, wait);
    reply.whenComplete((value, error) -> end(connection, wait));
    // The link may have been closed since the command was sent.
    if (connections.isClosed()) end(connection, wait);
    probeLater(wait.node);
    try {
      return connection.getOne();
    } finally {
      // Another thread ends the wait and disconnects the connection, perhaps later.
      if (!waits.remove(connection, wait)) connection.setBroken();
    }
  }

  private void end(Connection connection, Wait wait) {
    if (waits.remove(connection, wait)) disconnect(connection);
  }

  @Override
  public Link own() {
    return new JedisLink(new SessionConnections(connections.opening()));
  }

  @Override
  public void close() {
    connections.close();
    waits.keySet().forEach(JedisLink::disconnect);
    threads.shutdown();
  }

  /** Looks after a server for as long as there are waits. A silent server doesn't delay the others. */
  private void probeLater(Pool<Connection> node) {
    if (!probed.add(node)) return;
    CompletableFuture.delayedExecutor(PROBE_EVERY.toMillis(), TimeUnit.MILLISECONDS, threads).execute(() -> {
      if (isServing(node)) tellWaits(node);
      else endWaits(node);
      probed.remove(node);
      if (waits.values().stream().anyMatch(wait -> wait.node == node)) probeLater(node);
    });
  }

  /** Returns false if a server is silent, or isn't the primary any more. */
  private boolean isServing(Pool<Connection> node) {
    try {
      if (!connections.isCurrent(node)) return false;
      connections.probe(node, PROBE_MS);
      return true;
    } catch (Exception silent) {
      // Told by the waits.
      return false;
    }
  }

  private void tellWaits(Pool<Connection> node) {
    waits.values().forEach(wait -> {
      if (wait.node == node) wait.progress.alive();
    });
  }

  private void endWaits(Pool<Connection> node) {
    waits.forEach((connection, wait) -> {
      if (wait.node == node) end(connection, wait);
    });
  }

  private interface Exchange {
    Object run() throws Exception;
  }

  /** Runs an exchange on a thread of its own once there is a client, unless the reply is given up before. */
  private void run(CompletableFuture<Object> reply, Exchange exchange) {
    connections.opening().get().whenComplete((provider, refused) -> {
      if (refused != null) reply.completeExceptionally(told(refused));
      else if (!reply.isDone()) start(reply, exchange);
    });
  }

  private void start(CompletableFuture<Object> reply, Exchange exchange) {
    if (threads.isShutdown()) {
      reply.completeExceptionally(closed());
      return;
    }
    threads.execute(() -> {
      try {
        if (!reply.isDone()) reply.complete(exchange.run());
      } catch (JedisDataException error) {
        reply.completeExceptionally(new ServerError(error.getMessage(), null));
      } catch (Exception error) {
        reply.completeExceptionally(told(error));
      }
    });
  }

  /** Returns the error reply of the server, if connecting failed with one. */
  private static Throwable told(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof JedisDataException reply) return new ServerError(reply.getMessage(), null);
      for (Throwable also : cause.getSuppressed()) {
        if (told(also) instanceof ServerError reply) return reply;
      }
    }
    return error;
  }

  private static void disconnect(Connection connection) {
    connection.setBroken();
    try {
      connection.disconnect();
    } catch (JedisConnectionException closed) {
      // It is closed.
    }
  }

  private static IllegalStateException closed() {
    return new IllegalStateException("these locks are closed");
  }

  private static int millisOf(Duration limit) {
    return (int) Math.min(Math.max(limit.toMillis(), 1), Integer.MAX_VALUE);
  }

  /** Returns what makes the connections of a client. Jedis has no method that does. */
  private static ConnectionProvider providerOf(UnifiedJedis jedis) {
    try {
      Field provider = UnifiedJedis.class.getDeclaredField("provider");
      provider.setAccessible(true);
      return (ConnectionProvider) provider.get(jedis);
    } catch (ReflectiveOperationException | RuntimeException hidden) {
      throw new IllegalArgumentException("this Jedis hides its connections: give JedisLink a ConnectionProvider", hidden);
    }
  }
}
