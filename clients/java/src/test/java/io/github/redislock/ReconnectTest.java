package io.github.redislock;

import static io.github.redislock.TestServer.link;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Link;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.ClientOptions.DisconnectedBehavior;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.codec.RedisCodec;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.Delay;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;
import redis.clients.jedis.exceptions.JedisDataException;

/** Links that must find their server again. */
class ReconnectTest {
  @ParameterizedTest
  @EnumSource
  void aFrozenConnectionIsReplacedInSpiteOfAShortTimeout(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = new Locks(link(kind, proxy.port()), Duration.ofMillis(400), LockObserver.LOGGING)) {
      // No renewal and no cleanup of a question opens another connection.
      until(() -> isFree(locks.lock("k")));
      proxy.freeze();
      until(() -> isFree(locks.lock("k")));
    }
  }

  private static boolean isFree(RedisLock lock) {
    try {
      return !lock.isLocked();
    } catch (UnavailableException silent) {
      return false;
    }
  }

  /** Lettuce sends a command again by itself after it has lost its connection. */
  @Test
  void aResentReleaseIsNoLoss() throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = TestServer.locks(link(TestServer.Kind.LETTUCE, proxy.port()))) {
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

  /** The server may count the lease from the first of two acquires. */
  @Test
  void aResentAcquireCountsFromTheFirst() throws Exception {
    ClientResources slow = ClientResources.builder().reconnectDelay(Delay.constant(Duration.ofSeconds(2))).build();
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = new Locks(new LettuceLink(RedisClient.create(slow, "redis://127.0.0.1:" + proxy.port())),
            Duration.ofSeconds(30), LockObserver.LOGGING)) {
      proxy.dropReplyTo("LOCK.ACQUIRE");
      Hold hold = locks.lock("k").acquire();
      assertTrue(proxy.hasDropped());
      // A lease of 30 s has a margin of 1 s.
      assertTrue(hold.left().toMillis() < 27_500, () -> hold.left().toString());
      hold.release();
    } finally {
      slow.shutdown();
    }
  }

  /** The first of two acquires may still arrive after the release, so that is a LEAVE. */
  @Test
  void aResentAcquireIsReleasedByLeave() throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = TestServer.locks(link(TestServer.Kind.LETTUCE, proxy.port()))) {
      proxy.dropReplyTo("LOCK.ACQUIRE");
      Hold hold = locks.lock("k").acquire();
      assertTrue(proxy.hasDropped());
      assertTrue(hold.release());
      JedisDataException left = assertThrows(JedisDataException.class, () -> acquireAgain(server, hold));
      assertTrue(left.getMessage().startsWith("LEFT "), left.getMessage());
    }
  }

  /** The first of two ties may arrive late, and tie the grant to a connection that is dead. */
  @Test
  void aResentTieIsFollowedByAnotherToken() throws Exception {
    try (TestServer server = new TestServer();
        TestProxy proxy = new TestProxy(server.port());
        Locks locks = TestServer.locks(link(TestServer.Kind.LETTUCE, proxy.port()))) {
      proxy.dropReplyTo("SESSION");
      Hold hold = locks.lock(LockOptions.defaults().session(), "k").acquire();
      assertTrue(proxy.hasDropped());
      until(() -> new String((byte[]) server.command("INFO", "commandstats"))
          .contains("cmdstat_lock.release"));
      assertTrue(hold.isOwned());
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
    try (TestServer server = new TestServer("cluster 1")) {
      RedisClusterClient client = RedisClusterClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + server.port());
      client.setOptions((ClusterClientOptions) rejecting(ClusterClientOptions.builder(), reconnects).build());
      losesItsConnections(server, new LettuceLink(client));
    }
  }

  /** Lettuce throws a NullPointerException then. */
  @Test
  void aConnectionOfAClusterThatClosesUnderACallIsReplaced() throws Exception {
    try (TestServer server = new TestServer("cluster 1");
        Locks locks = TestServer.locks(new LettuceLink(new ClosingClient(server.port())))) {
      locks.lock("k").acquire().release();
    }
  }

  /** A client whose first connection closes as soon as it is used. */
  private static final class ClosingClient extends RedisClusterClient {
    private final AtomicBoolean isFirst = new AtomicBoolean(true);

    ClosingClient(int port) {
      super(TestServer.RESOURCES, List.of(RedisURI.create("127.0.0.1", port)));
    }

    @Override
    @SuppressWarnings("unchecked")
    public <K, V> StatefulRedisClusterConnection<K, V> connect(RedisCodec<K, V> codec) {
      StatefulRedisClusterConnection<K, V> opened = super.connect(codec);
      if (!isFirst.getAndSet(false)) return opened;
      Class<?>[] types = {StatefulRedisClusterConnection.class};
      return (StatefulRedisClusterConnection<K, V>) Proxy.newProxyInstance(
          getClass().getClassLoader(), types, (proxy, method, arguments) -> {
            if (method.getName().equals("getConnectionAsync")) opened.close();
            try {
              return method.invoke(opened, arguments);
            } catch (InvocationTargetException thrown) {
              throw thrown.getCause();
            }
          });
    }
  }

  private static <B extends ClientOptions.Builder> ClientOptions.Builder rejecting(B options, boolean reconnects) {
    return options.autoReconnect(reconnects).disconnectedBehavior(DisconnectedBehavior.REJECT_COMMANDS);
  }

  private static void losesItsConnections(TestServer server, Link link) throws Exception {
    try (Locks locks = TestServer.locks(link)) {
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
}
