package io.github.redislock;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.providers.SentineledConnectionProvider;

/**
 * Each kind of client, with names that the Redis clients have in all of their versions: {@code test} runs
 * this class with the oldest versions too.
 */
class KindsTest {
  @ParameterizedTest
  @EnumSource
  void oneServer(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      waitAndCancel(server, locks);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aCluster(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer("cluster 1")) {
      try (Locks locks = TestServer.locks(ofCluster(kind, server.port()))) {
        waitAndCancel(server, locks);
      }
    }
  }

  @ParameterizedTest
  @EnumSource
  void aSentinel(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer();
        TestServer sentinel = new TestServer("sentinel locks " + server.port())) {
      try (Locks locks = TestServer.locks(ofSentinel(kind, sentinel.port()))) {
        waitAndCancel(server, locks);
      }
    }
  }

  @ParameterizedTest
  @EnumSource
  void tls(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer("tls")) {
      int port = Integer.parseInt(server.word(1));
      try (Locks locks = TestServer.locks(ofTls(kind, port, Path.of(server.word(2))))) {
        waitAndCancel(server, locks);
      }
    }
  }

  /** A client of a cluster connects when it is made, which this link does at its first command. */
  @Test
  void aProgramStartsBeforeItsCluster() {
    Supplier<UnifiedJedis> jedis = () -> {
      throw new JedisConnectionException("no cluster yet");
    };
    try (Locks locks = new Locks(new JedisLink(jedis))) {
      String text = assertThrows(UnavailableException.class, () -> locks.lock("k").tryLock()).getMessage();
      assertTrue(text.contains("no cluster yet"), text);
    }
  }

  private static Link ofCluster(TestServer.Kind kind, int port) {
    if (kind == TestServer.Kind.LETTUCE) {
      return new LettuceLink(RedisClusterClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + port));
    }
    JedisClientConfig config = DefaultJedisClientConfig.builder().build();
    return TestServer.linkOf(new ClusterConnectionProvider(Set.of(new HostAndPort("127.0.0.1", port)), config));
  }

  private static Link ofSentinel(TestServer.Kind kind, int port) {
    if (kind == TestServer.Kind.LETTUCE) {
      RedisURI uri = RedisURI.Builder.sentinel("127.0.0.1", port, "locks").build();
      return new LettuceLink(RedisClient.create(TestServer.RESOURCES, uri));
    }
    JedisClientConfig config = DefaultJedisClientConfig.builder().build();
    return TestServer.linkOf(new SentineledConnectionProvider("locks", config, Set.of(new HostAndPort("127.0.0.1", port)), config));
  }

  @SuppressWarnings("deprecation")
  private static Link ofTls(TestServer.Kind kind, int port, Path certificate) throws Exception {
    if (kind == TestServer.Kind.LETTUCE) {
      RedisClient client = RedisClient.create(TestServer.RESOURCES, "rediss://localhost:" + port);
      SslOptions trusted = SslOptions.builder().trustManager(certificate.toFile()).build();
      client.setOptions(ClientOptions.builder().sslOptions(trusted).build());
      return new LettuceLink(client);
    }
    KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
    trusted.load(null, null);
    try (InputStream file = Files.newInputStream(certificate)) {
      trusted.setCertificateEntry("server", CertificateFactory.getInstance("X.509").generateCertificate(file));
    }
    TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    managers.init(trusted);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, managers.getTrustManagers(), null);
    JedisClientConfig config =
        DefaultJedisClientConfig.builder().ssl(true).sslSocketFactory(context.getSocketFactory()).build();
    return TestServer.linkOf(new PooledConnectionProvider(new HostAndPort("localhost", port), config));
  }

  private static void waitAndCancel(TestServer server, Locks locks) throws Exception {
    RedisLock lock = locks.lock("k");
    lock.lock();
    long fence = lock.fence();
    assertEquals(Optional.empty(), lock.tryAcquire());
    CompletableFuture<Hold> waits = lock.acquireAsync();
    CompletableFuture<Hold> cancelled = locks.lock("k").acquireAsync();
    until(() -> server.waiters("k") == 2);
    cancelled.cancel(true);
    until(() -> server.waiters("k") == 1);
    lock.unlock();
    try (Hold hold = held(waits)) {
      assertTrue(hold.fence() > fence);
      assertTrue(hold.extend(Duration.ofMinutes(1)));
      assertFalse(hold.toString().contains(hold.token()));
    }
    try (Hold hold = locks.lock("k").acquire()) {
      until(() -> isRefused(() -> locks.lock("k").acquire(Duration.ofSeconds(1))));
    }
    assertFalse(server.exists("k"));
    RedisLock session = locks.lock(LockOptions.defaults().session(), "k");
    assertTrue(session.tryLock());
    session.unlock();
  }

  private static Hold held(CompletableFuture<Hold> waits) throws InterruptedException, ExecutionException, TimeoutException {
    return waits.get(20, TimeUnit.SECONDS);
  }
}
