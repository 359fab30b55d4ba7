package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Command;
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

  @ParameterizedTest
  @EnumSource
  void aFrozenConnectionIsReplacedInSpiteOfAShortTimeout(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = new Locks(link(kind, proxy.port()), Duration.ofMillis(400), Observer.LOGGING)) {
      RedisLock lock = locks.lock("k");
      until(() -> isGranted(lock));
      proxy.freeze();
      until(() -> isGranted(locks.lock("other")));
    }
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
    try (TestServer server = TestServer.cluster(1).get(0)) {
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

  /** The waits at each of several silent servers hear of it at the same time. */
  @Test
  void silentServersAreLookedAfterAtOnce() throws Exception {
    int nodes = 4;
    List<TestServer> servers = TestServer.cluster(nodes);
    List<Locks> waiting = new ArrayList<>();
    try {
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

  /** A node dies, and its slots move only after the links have begun to refuse. */
  @ParameterizedTest
  @EnumSource
  void aFailoverIsFoundThoughTheNodeRefuses(TestServer.Kind kind) throws Exception {
    int nodes = 4;
    List<TestServer> servers = TestServer.cluster(nodes);
    try {
      for (TestServer server : servers) server.command("CONFIG", "SET", "cluster-require-full-coverage", "no");
      try (Locks locks = new Locks(clusterLink(kind, servers.get(1).port()), Duration.ofSeconds(2), Observer.LOGGING)) {
        String key = keyOf(servers.get(0), 0, nodes);
        RedisLock lock = locks.lock(key);
        until(() -> isGranted(lock));
        lock.unlock();
        servers.get(0).close();
        for (int tries = 0; tries < 2; tries++) assertThrows(UnavailableException.class, lock::tryLock);
        moveSlot(key, servers.get(1), servers.subList(1, nodes));
        assertTrue(lock.tryLock(20, TimeUnit.SECONDS));
        assertTrue(servers.get(1).command("EXISTS", key).equals(1L));
        lock.unlock();
      }
    } finally {
      servers.forEach(TestServer::close);
    }
  }

  /** The connection on which a wait was redirected belongs to the next wait. */
  @Test
  void aRedirectedWaitLeavesTheOthersAlone() throws Exception {
    List<TestServer> servers = TestServer.cluster(2);
    try {
      TestServer old = servers.get(0);
      TestServer heir = servers.get(1);
      String moved = keyOf(old, 0, 2, "moved");
      String stays = keyOf(old, 0, 2, "stays");
      try (Link link = clusterLink(TestServer.Kind.JEDIS, old.port())) {
        moveSlot(moved, heir, servers);
        CompletableFuture<Object> redirected = waitBehindAnother(link, moved, heir);
        CompletableFuture<Object> next = waitBehindAnother(link, stays, old);
        heir.command("LOCK.RELEASE", moved, "other");
        redirected.get(20, TimeUnit.SECONDS);
        old.command("LOCK.RELEASE", stays, "other");
        assertTrue(next.get(20, TimeUnit.SECONDS) instanceof List);
      }
    } finally {
      servers.forEach(TestServer::close);
    }
  }

  private static CompletableFuture<Object> waitBehindAnother(Link link, String key, TestServer server) {
    server.command("LOCK.ACQUIRE", key, "other", "PX", "600000");
    Command wait = Command.of("WAIT", List.of(key.getBytes()), "token", "PX", 60_000, "BLOCK", 0);
    CompletableFuture<Object> reply = link.block(wait, Duration.ZERO, Duration.ofSeconds(20), () -> {});
    until(() -> server.waiters(key) == 1);
    return reply;
  }

  private static Link clusterLink(TestServer.Kind kind, int port) {
    if (kind == TestServer.Kind.LETTUCE) {
      return new LettuceLink(RedisClusterClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + port));
    }
    HostAndPort node = new HostAndPort("127.0.0.1", port);
    return new JedisLink(TestServer.jedis(new ClusterConnectionProvider(Set.of(node), DefaultJedisClientConfig.builder().build())));
  }

  /** Returns true if a try is granted. Connecting to a cluster takes some time. */
  private static boolean isGranted(RedisLock lock) {
    try {
      return lock.tryLock();
    } catch (UnavailableException notYet) {
      return false;
    }
  }

  /** Tells some nodes that the slot of a key is served by another node now. */
  private static void moveSlot(String key, TestServer to, List<TestServer> told) {
    String id = new String((byte[]) to.command("CLUSTER", "MYID"));
    for (TestServer server : told) {
      server.command("CLUSTER", "SETSLOT", "" + server.command("CLUSTER", "KEYSLOT", key), "NODE", id);
    }
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
    return keyOf(server, number, nodes, "k");
  }

  private static String keyOf(TestServer server, int number, int nodes, String start) {
    for (int next = 0; ; next++) {
      long slot = (Long) server.command("CLUSTER", "KEYSLOT", start + next);
      if (slot / (SLOTS / nodes) == number) return start + next;
    }
  }
}
