package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
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
import redis.clients.jedis.exceptions.JedisDataException;
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
        Locks locks = new Locks(link(kind, name.port()), Duration.ofSeconds(8), LockObserver.LOGGING)) {
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
        Locks locks = new Locks(link(kind, proxy.port()), Duration.ofMillis(400), LockObserver.LOGGING)) {
      until(() -> isGranted(locks.lock("k")));
      proxy.freeze();
      until(() -> isGranted(locks.lock("other")));
    }
  }

  /** Lettuce sends a command again by itself after it has lost its connection. */
  @Test
  void aResentReleaseIsNoLoss() throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = new Locks(link(TestServer.Kind.LETTUCE, proxy.port()), Duration.ofSeconds(8), LockObserver.LOGGING)) {
      Hold hold = locks.lock("k").acquire();
      proxy.dropReplyTo("LOCK.RELEASE");
      assertTrue(hold.release());
      assertTrue(proxy.hasDropped());
      locks.lock("k").lock();
      proxy.dropReplyTo("LOCK.RELEASE");
      locks.lock("k").unlock();
      assertTrue(proxy.hasDropped());
      Hold lost = locks.lock("k").acquire();
      server.command("DEL", "k");
      assertFalse(lost.release());
    }
  }

  /** The first of two acquires may still arrive after the release, so that is a LEAVE. */
  @Test
  void aResentAcquireIsReleasedByLeave() throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = new Locks(link(TestServer.Kind.LETTUCE, proxy.port()), Duration.ofSeconds(8), LockObserver.LOGGING)) {
      proxy.dropReplyTo("LOCK.ACQUIRE");
      Hold hold = locks.lock("k").acquire();
      assertTrue(proxy.hasDropped());
      assertTrue(hold.release());
      JedisDataException left = assertThrows(JedisDataException.class, () -> acquireAgain(server, hold));
      assertTrue(left.getMessage().startsWith("LEFT "), left.getMessage());
    }
  }

  /** The first node replied, so it has no command of this client. */
  @Test
  void aRedirectedAcquireIsReleasedForGood() throws Exception {
    int nodes = 2;
    List<TestServer> servers = TestServer.cluster(nodes);
    try (Locks locks =
        new Locks(clusterLink(TestServer.Kind.LETTUCE, servers.get(0).port()), Duration.ofSeconds(8), LockObserver.LOGGING)) {
      String key = keyOf(servers.get(0), 0, nodes);
      until(() -> isGranted(locks.lock(key)));
      locks.lock(key).unlock();
      moveSlot(key, servers.get(1), servers);
      Hold hold = locks.lock(key).acquire();
      assertTrue(servers.get(1).command("EXISTS", key).equals(1L));
      assertTrue(hold.release());
      acquireAgain(servers.get(1), hold);
    } finally {
      servers.forEach(TestServer::close);
    }
  }

  /** Acquires the lock for the token of a hold that ended. Fails after a LEAVE. */
  private static void acquireAgain(TestServer server, Hold hold) {
    assertNotNull(server.command("LOCK.ACQUIRE", hold.keys().get(0), hold.token(), "PX", "60000"));
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
    try (Locks locks = new Locks(link, Duration.ofSeconds(8), LockObserver.LOGGING)) {
      Hold hold = locks.lock(LockOptions.defaults().keep(Duration.ofMinutes(5)), "k").acquire();
      CompletableFuture<Hold> waits = locks.lock("k").acquireAsync();
      until(() -> server.waiters("k") == 1);
      server.command("CLIENT", "KILL", "TYPE", "normal");
      assertTrue(hold.release());
      Hold next = waits.get(20, TimeUnit.SECONDS);
      waits = locks.lock("k").acquireAsync();
      until(() -> server.waiters("k") == 1);
      next.release();
      waits.get(20, TimeUnit.SECONDS).release();
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
      try (Locks locks = new Locks(clusterLink(kind, servers.get(1).port()), Duration.ofSeconds(2), LockObserver.LOGGING)) {
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
