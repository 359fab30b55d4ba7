package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.ClientOptions.DisconnectedBehavior;
import io.lettuce.core.RedisClient;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Links that must find their server again. */
class ReconnectTest {
  private static final int SLOTS = 16384;

  /** The name of the primary leads to another server after a failover, and the old one lives on as a replica. */
  @ParameterizedTest
  @EnumSource
  void theNameOfThePrimaryMoves(TestServer.Kind kind) throws Exception {
    try (TestServer old = new TestServer();
        TestServer promoted = new TestServer();
        TestProxy name = new TestProxy(old.port());
        Locks locks = new Locks(link(kind, name.port()), Duration.ofSeconds(8), Observer.LOGGING)) {
      RedisLock lock = locks.lock("k");
      lock.lock();
      lock.unlock();
      name.moveTo(promoted.port());
      old.command("REPLICAOF", "127.0.0.1", "" + promoted.port());
      assertTrue(lock.tryLock());
      assertTrue(promoted.command("EXISTS", "k").equals(1L));
      lock.unlock();
    }
  }

  private static Link link(TestServer.Kind kind, int port) {
    if (kind == TestServer.Kind.LETTUCE) {
      return new LettuceLink(RedisClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + port));
    }
    return new JedisLink(TestServer.jedis(new PooledConnectionProvider(new HostAndPort("127.0.0.1", port))));
  }

  /** Lettuce may leave a lost connection closed. */
  @ParameterizedTest
  @ValueSource(booleans = {true, false})
  void aClosedConnectionIsReplaced(boolean reconnects) throws Exception {
    try (TestServer server = new TestServer()) {
      RedisClient client = RedisClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + server.port());
      client.setOptions(rejecting(ClientOptions.builder(), reconnects).build());
      losesItsConnections(server, new LettuceLink(client));
    }
  }

  @ParameterizedTest
  @ValueSource(booleans = {true, false})
  void aClosedConnectionOfAClusterIsReplaced(boolean reconnects) throws Exception {
    try (TestServer server = node(List.of(), 0, 1)) {
      until(() -> isUp(server));
      RedisClusterClient client = RedisClusterClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + server.port());
      client.setOptions((ClusterClientOptions) rejecting(ClusterClientOptions.builder(), reconnects).build());
      losesItsConnections(server, new LettuceLink(client));
    }
  }

  private static <B extends ClientOptions.Builder> ClientOptions.Builder rejecting(B options, boolean reconnects) {
    return options.autoReconnect(reconnects).disconnectedBehavior(DisconnectedBehavior.REJECT_COMMANDS);
  }

  private static void losesItsConnections(TestServer server, Link link) throws Exception {
    try (Locks locks = new Locks(link, Duration.ofSeconds(8), Observer.LOGGING)) {
      Hold hold = locks.lock(LockOptions.defaults().keep(Duration.ofMinutes(5)), "k").acquire();
      CompletableFuture<Hold> waits = locks.lock("k").acquireAsync();
      until(() -> server.waiters("k") == 1 && hears(server));
      server.command("CLIENT", "KILL", "TYPE", "normal");
      server.command("CLIENT", "KILL", "TYPE", "pubsub");
      assertTrue(hold.release());
      Hold next = waits.get(20, TimeUnit.SECONDS);
      waits = locks.lock("k").acquireAsync();
      until(() -> server.waiters("k") == 1 && hears(server));
      next.release();
      waits.get(20, TimeUnit.SECONDS).release();
    }
  }

  /** Returns true if a connection listens for the turns of waits. */
  private static boolean hears(TestServer server) {
    String clients = new String((byte[]) server.command("CLIENT", "LIST", "TYPE", "pubsub"));
    return !clients.isBlank();
  }

  private static boolean isUp(TestServer server) {
    return new String((byte[]) server.command("CLUSTER", "INFO")).contains("cluster_state:ok");
  }

  /** The waits at each of several silent servers hear of it at the same time. */
  @Test
  void silentServersAreLookedAfterAtOnce() throws Exception {
    int nodes = 4;
    List<TestServer> servers = new ArrayList<>();
    List<Locks> waiting = new ArrayList<>();
    try {
      for (int node = 0; node < nodes; node++) servers.add(node(servers, node, nodes));
      until(() -> servers.stream().allMatch(ReconnectTest::isUp));
      HostAndPort first = new HostAndPort("127.0.0.1", servers.get(0).port());
      ClusterConnectionProvider provider =
          new ClusterConnectionProvider(Set.of(first), DefaultJedisClientConfig.builder().build());
      Link link = new JedisLink(TestServer.jedis(provider));
      List<CompletableFuture<Long>> ends = new ArrayList<>();
      for (int node = 0; node < nodes; node++) ends.add(waitAt(keyOf(servers.get(node), node, nodes), servers.get(node), link, waiting));
      for (TestServer server : servers) server.stop();
      for (CompletableFuture<Long> end : ends) end.get(40, TimeUnit.SECONDS);
      long firstNanos = ends.stream().mapToLong(CompletableFuture::join).min().orElseThrow();
      long lastNanos = ends.stream().mapToLong(CompletableFuture::join).max().orElseThrow();
      long betweenMs = TimeUnit.NANOSECONDS.toMillis(lastNanos - firstNanos);
      assertTrue(betweenMs < 4000, "the last one hears " + betweenMs + " ms after the first one");
    } finally {
      waiting.forEach(Locks::close);
      servers.forEach(TestServer::close);
    }
  }

  /** Starts a node with its part of the slots. */
  private static TestServer node(List<TestServer> before, int number, int nodes) throws Exception {
    int bus = TestServer.freePort();
    TestServer server = new TestServer("--cluster-enabled", "yes", "--cluster-port", "" + bus);
    int each = SLOTS / nodes;
    server.command("CLUSTER", "ADDSLOTSRANGE", "" + number * each, "" + ((number + 1) * each - 1));
    // With the ports of the bus, which a node doesn't know.
    for (TestServer other : before) {
      other.command("CLUSTER", "MEET", "127.0.0.1", "" + server.port(), "" + bus);
    }
    return server;
  }

  /** Begins a wait at a server. Returns the time at which the observer hears of an outage. */
  private static CompletableFuture<Long> waitAt(String key, TestServer server, Link link, List<Locks> waiting) {
    server.command("LOCK.ACQUIRE", key, "other", "PX", "600000");
    CompletableFuture<Long> told = new CompletableFuture<>();
    Locks locks = new Locks(link, Duration.ofSeconds(1), new Observer() {
      @Override
      public void unavailable(UnavailableException outage) {
        told.complete(System.nanoTime());
      }
    });
    waiting.add(locks);
    locks.lock(key).acquireAsync();
    until(() -> server.waiters(key) == 1);
    return told;
  }

  private static String keyOf(TestServer server, int number, int nodes) {
    for (int next = 0; ; next++) {
      long slot = (Long) server.command("CLUSTER", "KEYSLOT", "k" + next);
      if (slot / (SLOTS / nodes) == number) return "k" + next;
    }
  }
}
