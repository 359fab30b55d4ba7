package io.github.redislock.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.NotAcquiredException;
import io.github.redislock.UnavailableException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** A server with the module, of the programs in REDIS_SERVER and REDIS_LOCK_MODULE. */
public final class TestServer implements AutoCloseable {
  private final int port;
  private final Process process;
  private final Jedis admin;

  /** Starts a server with more arguments, and waits until it replies. */
  public static TestServer start(String... arguments) {
    List<String> all = new ArrayList<>(List.of("--save", "", "--loadmodule", environment("REDIS_LOCK_MODULE")));
    all.addAll(List.of(arguments));
    return new TestServer(all);
  }

  /** Starts a Sentinel that watches a server by the name {@code primary}. */
  public static TestServer sentinelOf(TestServer server) throws IOException {
    Path settings = Files.createTempFile("redis-lock-sentinel", ".conf");
    Files.writeString(settings, "sentinel monitor primary 127.0.0.1 " + server.port + " 1\n");
    return new TestServer(List.of(settings.toString(), "--sentinel"));
  }

  private TestServer(List<String> arguments) {
    int free;
    Process started;
    int tries = 0;
    do {
      if (tries++ == 5) throw new IllegalStateException("the server can't be started");
      free = freePort();
      started = started(free, arguments);
    } while (!isServed(free, started));
    port = free;
    process = started;
    admin = new Jedis("127.0.0.1", port, 20_000);
  }

  private static int freePort() {
    try (ServerSocket free = new ServerSocket(0)) {
      return free.getLocalPort();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static Process started(int port, List<String> arguments) {
    List<String> words = new ArrayList<>(List.of(environment("REDIS_SERVER")));
    // The file with the settings comes first.
    boolean hasFile = !arguments.get(0).startsWith("--");
    if (hasFile) words.add(arguments.get(0));
    words.addAll(List.of("--port", "" + port));
    words.addAll(arguments.subList(hasFile ? 1 : 0, arguments.size()));
    try {
      Path folder = Files.createTempDirectory("redis-lock");
      return new ProcessBuilder(words)
          .directory(folder.toFile())
          .redirectErrorStream(true)
          .redirectOutput(folder.resolve("log").toFile())
          .start();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Waits until a port replies. Ends the process and returns false if another one has the port. */
  private static boolean isServed(int port, Process process) {
    String info = until(() -> process.isAlive() ? infoAt(port) : "");
    if (info.contains("process_id:" + process.pid() + "\r")) return true;
    process.destroyForcibly();
    return false;
  }

  /** Returns the INFO of the server at a port, or null if none replies. */
  private static String infoAt(int port) {
    try (Jedis probe = new Jedis("127.0.0.1", port)) {
      return probe.info("server");
    } catch (JedisException notYet) {
      return null;
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
      if (new String((byte[]) fields.get(field)).equals("waiters")) return (Long) fields.get(field + 1);
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
    signal("STOP");
  }

  public void goOn() {
    signal("CONT");
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

  private void signal(String signal) {
    try {
      new ProcessBuilder("kill", "-" + signal, "" + process.pid()).start().waitFor();
    } catch (IOException | InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private static String environment(String name) {
    String value = System.getenv(name);
    if (value == null) throw new IllegalStateException(name + " isn't set");
    return value;
  }

  @Override
  public void close() {
    goOn();
    process.destroyForcibly();
  }
}
