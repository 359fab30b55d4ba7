package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.RedisClient;
import io.lettuce.core.resource.ClientResources;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.ProcessBuilder.Redirect;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** A server with the module, which the program in REDIS_LOCK_RIG starts. It ends with this JVM. */
final class TestServer implements AutoCloseable {
  /** The threads of all Lettuce clients. */
  static final ClientResources RESOURCES = ClientResources.create();

  private static Process rig;

  enum Kind {
    LETTUCE,
    JEDIS
  }

  private final int port;
  private final Jedis admin;

  TestServer() {
    this(order("start").get(0));
  }

  TestServer(String port) {
    this.port = Integer.parseInt(port);
    admin = new Jedis("127.0.0.1", this.port, 20_000);
  }

  /** Sends an order of tests/rig/src/main.rs. Returns the words of its reply. */
  static synchronized List<String> order(String order) {
    try {
      if (rig == null) {
        rig = new ProcessBuilder(System.getenv("REDIS_LOCK_RIG"), "serve").redirectError(Redirect.INHERIT).start();
      }
      rig.outputWriter().append(order).append('\n').flush();
      List<String> reply = List.of(String.valueOf(rig.inputReader().readLine()).split(" "));
      if (!reply.get(0).equals("ok")) throw new IllegalStateException(order + ": " + reply);
      return reply.subList(1, reply.size());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Starts a cluster, whose nodes have equal parts of the slots. */
  static List<TestServer> cluster(int nodes) {
    return order("cluster " + nodes).stream().map(TestServer::new).toList();
  }

  int port() {
    return port;
  }

  Locks locks(Kind kind) {
    // A busy machine may need more than the default command timeout.
    return new Locks(link(kind), Duration.ofSeconds(8), LockObserver.LOGGING);
  }

  /** Returns a link by the names that a Redis client has in all of its versions. */
  Link link(Kind kind) {
    if (kind == Kind.LETTUCE) return new LettuceLink(RedisClient.create(RESOURCES, "redis://localhost:" + port));
    ConnectionProvider provider = new PooledConnectionProvider(new HostAndPort("localhost", port));
    return new JedisLink(jedis(provider));
  }

  @SuppressWarnings("deprecation")
  static UnifiedJedis jedis(ConnectionProvider provider) {
    return new UnifiedJedis(provider, 1, Duration.ofSeconds(1));
  }

  synchronized Object command(String name, String... arguments) {
    return admin.sendCommand(() -> name.getBytes(), arguments);
  }

  long waiters(String key) {
    Object info = command("LOCK.INFO", key);
    if (!(info instanceof List<?> fields)) return 0;
    for (int field = 0; field < fields.size(); field += 2) {
      if (fields.get(field) instanceof byte[] name && Arrays.equals(name, "waiters".getBytes())) return (Long) fields.get(field + 1);
    }
    return 0;
  }

  long connections() {
    return new String((byte[]) command("CLIENT", "LIST")).lines().count() - 1;
  }

  void stop() {
    order("freeze " + port);
  }

  void goOn() {
    order("thaw " + port);
  }

  static void until(BooleanSupplier condition) {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > deadline) throw new AssertionError("not within 20 s");
      try {
        Thread.sleep(5);
      } catch (InterruptedException interrupt) {
        throw new AssertionError(interrupt);
      }
    }
  }

  /** Returns true if a wait ends without the lock. A busy server may confirm that too late. */
  static boolean isRefused(Callable<?> wait) {
    try {
      assertEquals(Optional.empty(), wait.call());
    } catch (Exception error) {
      Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
      if (cause instanceof UnavailableException) return false;
      assertInstanceOf(NotAcquiredException.class, cause);
    }
    return true;
  }

  @Override
  public void close() {
    order("end " + port);
  }
}
