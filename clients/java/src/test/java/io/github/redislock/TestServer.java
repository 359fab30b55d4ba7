package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.RedisClient;
import io.lettuce.core.resource.ClientResources;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
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
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** A server with the module, of the programs in REDIS_SERVER and REDIS_LOCK_MODULE. */
final class TestServer implements AutoCloseable {
  /** The threads of all Lettuce clients. */
  static final ClientResources RESOURCES = ClientResources.create();

  enum Kind {
    LETTUCE,
    JEDIS
  }

  private final int port;
  private int tlsPort;
  private final Process process;
  private final Jedis admin;

  /** A process that serves its port. */
  record Served(int port, Process process) {}

  interface Program {
    Process start(int port) throws IOException;
  }

  TestServer(String... more) throws Exception {
    Served server = served(port -> started(port, more));
    port = server.port;
    process = server.process;
    admin = new Jedis("127.0.0.1", port, 20_000);
  }

  private static Process started(int port, String... more) throws IOException {
    Path folder = Files.createTempDirectory("redis-lock");
    List<String> words = new ArrayList<>(List.of(environment("REDIS_SERVER"), "--port", "" + port,
        "--dir", folder.toString(), "--save", "", "--loadmodule", environment("REDIS_LOCK_MODULE")));
    words.addAll(List.of(more));
    return new ProcessBuilder(words)
        .redirectErrorStream(true)
        .redirectOutput(folder.resolve("log").toFile())
        .start();
  }

  /** Starts a program at a free port, and at the next one if another process takes that first. */
  static Served served(Program program) throws IOException {
    for (int tries = 0; tries < 5; tries++) {
      int port = freePort();
      Process process = program.start(port);
      String[] info = {""};
      until(() -> !process.isAlive() || !(info[0] = infoAt(port)).isEmpty());
      if (info[0].contains("process_id:" + process.pid() + "\r")) return new Served(port, process);
      process.destroyForcibly();
    }
    throw new IllegalStateException("the server can't be started");
  }

  static int freePort() throws IOException {
    try (ServerSocket free = new ServerSocket(0)) {
      return free.getLocalPort();
    }
  }

  /** Returns the INFO of the server at a port, or an empty text if none replies. */
  private static String infoAt(int port) {
    try (Jedis probe = new Jedis("127.0.0.1", port)) {
      return probe.info("server");
    } catch (JedisException notYet) {
      return "";
    }
  }

  /** Returns a server that speaks TLS at {@link #tlsPort}, with this certificate for localhost. */
  static TestServer withTls(Path folder) throws Exception {
    Path certificate = folder.resolve("certificate.pem");
    Path key = folder.resolve("key.pem");
    Process made = new ProcessBuilder("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key.toString(), "-out", certificate.toString())
        .redirectErrorStream(true).redirectOutput(folder.resolve("openssl.log").toFile()).start();
    if (made.waitFor() != 0) throw new IllegalStateException(Files.readString(folder.resolve("openssl.log")));
    int tlsPort = freePort();
    TestServer server = new TestServer("--tls-port", "" + tlsPort, "--tls-cert-file", certificate.toString(),
        "--tls-key-file", key.toString(), "--tls-auth-clients", "no");
    server.tlsPort = tlsPort;
    return server;
  }

  int tlsPort() {
    return tlsPort;
  }

  private static String environment(String name) {
    String value = System.getenv(name);
    if (value == null) throw new IllegalStateException(name + " isn't set");
    return value;
  }

  int port() {
    return port;
  }

  Locks locks(Kind kind) {
    // A busy machine may need more than the default command timeout.
    return new Locks(link(kind), Duration.ofSeconds(8), Observer.LOGGING);
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

  void stop() throws IOException {
    signal("STOP");
  }

  void goOn() throws IOException {
    signal("CONT");
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

  private void signal(String signal) throws IOException {
    new ProcessBuilder("kill", "-" + signal, "" + process.pid()).start().onExit().join();
  }

  @Override
  public void close() {
    process.destroyForcibly().onExit().join();
  }
}
