package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
public final class TestServer implements AutoCloseable {
  /** The threads of all Lettuce clients. */
  static final ClientResources RESOURCES = ClientResources.create();

  private static Process rig;

  public enum Kind {
    LETTUCE,
    JEDIS
  }

  private final List<String> words;
  private final int port;
  private final Jedis admin;

  public TestServer() {
    this("start");
  }

  /** Starts a server by an order of tests/rig/src/main.rs. */
  public TestServer(String order) {
    words = order(order);
    port = Integer.parseInt(words.get(0));
    admin = new Jedis("127.0.0.1", port, 20_000);
  }

  private static synchronized List<String> order(String order) {
    try {
      if (rig == null) {
        rig = new ProcessBuilder(System.getenv("REDIS_LOCK_RIG"), "serve")
            .redirectError(Redirect.INHERIT).start();
      }
      rig.outputWriter().append(order).append('\n').flush();
      List<String> reply = List.of(String.valueOf(rig.inputReader().readLine()).split(" "));
      if (!reply.get(0).equals("ok")) throw new IllegalStateException(order + ": " + reply);
      return reply.subList(1, reply.size());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  public int port() {
    return port;
  }

  /** Returns a word of the reply to the order: a TLS server has a port and a certificate, too. */
  public String word(int number) {
    return words.get(number);
  }

  /** Returns locks that allow for a busy machine. */
  public Locks locks(Kind kind) {
    return locks(link(kind));
  }

  static Locks locks(Link link) {
    return new Locks(link, Duration.ofSeconds(15), LockObserver.LOGGING);
  }

  public Link link(Kind kind) {
    return link(kind, port);
  }

  /** Returns a link by the names that a Redis client has in all of its versions. */
  static Link link(Kind kind, int port) {
    return kind == Kind.LETTUCE
        ? new LettuceLink(RedisClient.create(RESOURCES, "redis://localhost:" + port))
        : linkOf(new PooledConnectionProvider(new HostAndPort("localhost", port)));
  }

  static Link linkOf(ConnectionProvider provider) {
    return new JedisLink(jedis(provider));
  }

  @SuppressWarnings("deprecation")
  static UnifiedJedis jedis(ConnectionProvider provider) {
    return new UnifiedJedis(provider, 1, Duration.ofSeconds(1));
  }

  public synchronized Object command(String name, String... arguments) {
    return admin.sendCommand(() -> name.getBytes(), arguments);
  }

  public boolean exists(String key) {
    return command("EXISTS", key).equals(1L);
  }

  /** Returns how many clients wait for a lock that is held. */
  public long waiters(String key) {
    if (!(command("LOCK.INFO", key) instanceof List<?> fields)) return 0;
    for (int field = 0; field < fields.size(); field += 2) {
      boolean isCount = Arrays.equals((byte[]) fields.get(field), "waiters".getBytes());
      if (isCount) return (Long) fields.get(field + 1);
    }
    return 0;
  }

  /** Returns the connections other than this object's. */
  public List<String> connections() {
    return new String((byte[]) command("CLIENT", "LIST")).lines()
        .filter(line -> !line.contains("cmd=client")).toList();
  }

  public void stop() {
    order("freeze " + port);
  }

  public void goOn() {
    order("thaw " + port);
  }

  /** Polls until the condition holds. */
  public static void until(BooleanSupplier condition) {
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

  /** Returns true if a try is granted. Connecting may take longer than the command timeout. */
  public static boolean isGranted(RedisLock lock) {
    try {
      return lock.tryLock();
    } catch (UnavailableException notYet) {
      return false;
    }
  }

  /** Returns true if a wait ends without the lock. A busy server may confirm that too late. */
  public static boolean isRefused(Callable<?> wait) {
    try {
      Object nothing = wait.call();
      assertTrue(nothing.equals(Optional.empty()) || nothing.equals(false), nothing::toString);
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
