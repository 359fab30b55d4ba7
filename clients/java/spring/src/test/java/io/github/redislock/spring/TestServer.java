package io.github.redislock.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.NotAcquiredException;
import io.github.redislock.UnavailableException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.ProcessBuilder.Redirect;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import redis.clients.jedis.Jedis;

/** A server with the module, which the program in REDIS_LOCK_RIG starts. It ends with this JVM. */
public final class TestServer implements AutoCloseable {
  private static Process rig;

  private final int port;
  private final Jedis admin;

  private final String[] words;

  /** Starts a server by an order. */
  private TestServer(String order) {
    words = order(order).split(" ");
    port = Integer.parseInt(words[0]);
    admin = new Jedis("127.0.0.1", port, 20_000);
  }

  public static TestServer start() {
    return new TestServer("start");
  }

  /** Starts a cluster of one node. */
  public static TestServer cluster() {
    return new TestServer("cluster 1");
  }

  /** Starts a Sentinel that watches a server by the name {@code primary}. */
  public static TestServer sentinelOf(TestServer server) {
    return new TestServer("sentinel primary " + server.port);
  }

  /** Starts a server with a port for TLS, too. */
  public static TestServer tls() {
    return new TestServer("tls");
  }

  public String tlsPort() {
    return words[1];
  }

  /** Returns the file of the server's certificate, which nobody trusts yet. */
  public String certificate() {
    return words[2];
  }

  /** Sends an order of tests/rig/src/main.rs. Returns its reply without the word {@code ok}. */
  private static synchronized String order(String order) {
    try {
      if (rig == null) {
        rig = new ProcessBuilder(System.getenv("REDIS_LOCK_RIG"), "serve")
            .redirectError(Redirect.INHERIT).start();
      }
      rig.outputWriter().append(order).append('\n').flush();
      String reply = rig.inputReader().readLine();
      boolean isOk = reply != null && reply.startsWith("ok");
      if (!isOk) throw new IllegalStateException(order + ": " + reply);
      return reply.substring(2).strip();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  public int port() {
    return port;
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
      boolean isCount = new String((byte[]) fields.get(field)).equals("waiters");
      if (isCount) return (Long) fields.get(field + 1);
    }
    return 0;
  }

  /** Returns the connections other than this object's. */
  public String connections() {
    return new String((byte[]) command("CLIENT", "LIST")).lines()
        .filter(line -> !line.contains("cmd=client"))
        .reduce("", (all, line) -> all + line + "\n");
  }

  public void stop() {
    order("freeze " + port);
  }

  public void goOn() {
    order("thaw " + port);
  }

  /** Polls until the condition holds. */
  public static void await(BooleanSupplier condition) {
    until(() -> condition.getAsBoolean() ? Boolean.TRUE : null);
  }

  /** Returns true if a wait ends without the lock. A busy server may confirm that too late. */
  public static boolean isRefused(Callable<?> wait) {
    try {
      assertThat(wait.call()).isEqualTo(false);
    } catch (Exception error) {
      if (error instanceof UnavailableException) return false;
      assertThat(error).isInstanceOf(NotAcquiredException.class);
    }
    return true;
  }

  /** Polls until there is a value. */
  public static <T> T until(Supplier<T> value) {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
    while (true) {
      T found = value.get();
      if (found != null) return found;
      if (System.nanoTime() > deadline) throw new AssertionError("not within 20 s");
      pause();
    }
  }

  private static void pause() {
    try {
      Thread.sleep(5);
    } catch (InterruptedException interrupt) {
      throw new AssertionError(interrupt);
    }
  }

  @Override
  public void close() {
    order("end " + port);
  }
}
