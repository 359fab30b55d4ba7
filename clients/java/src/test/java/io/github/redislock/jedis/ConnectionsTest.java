package io.github.redislock.jedis;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.Locks;
import io.github.redislock.Observer;
import io.github.redislock.UnavailableException;
import io.github.redislock.spi.Command;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.apache.commons.pool2.BasePooledObjectFactory;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.DefaultPooledObject;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.util.Pool;

/** The connections of a link on Jedis. */
class ConnectionsTest {
  private static final Command CHECK = Command.of("CHECK", List.of("k".getBytes()), "token");

  /** Makes connections that tell when they are closed. */
  private static final class Factory extends BasePooledObjectFactory<Connection> {
    final int port;
    volatile Runnable closed = () -> {};

    Factory(int port) {
      this.port = port;
    }

    @Override
    public Connection create() {
      Connection connection = new Connection(new HostAndPort("127.0.0.1", port)) {
        @Override
        public void close() {
          super.close();
          closed.run();
        }
      };
      connection.connect();
      return connection;
    }

    @Override
    public PooledObject<Connection> wrap(Connection connection) {
      return new DefaultPooledObject<>(connection);
    }
  }

  /** Jedis reopens a closed connection when it sends, without AUTH and SELECT. */
  @Test
  void aClosedConnectionIsNeverUsedAgain() throws Exception {
    try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
      Factory factory = new Factory(server.getLocalPort());
      Connections connections = new Connections(new Opening(new PooledConnectionProvider(factory)));
      Connections.Exchange nothing = (node, connection) -> null;
      // Three at a time, so two are idle while the third one is used.
      connections.redirected(CHECK, (node, first) -> nested(connections, () ->
          nested(connections, () -> connections.redirected(CHECK, nothing))));
      AtomicReference<Boolean> wasOpen = new AtomicReference<>();
      factory.closed = () -> {
        factory.closed = () -> {};
        unchecked(() -> connections.redirected(CHECK, (node, next) -> {
          wasOpen.set(next.isConnected());
          return null;
        }));
      };
      assertThrows(JedisConnectionException.class, () -> connections.redirected(CHECK, (node, lost) -> {
        throw new JedisConnectionException("lost");
      }));
      connections.close();
      assertTrue(wasOpen.get());
    }
  }

  @Test
  void aConnectionThatIsReadyAfterTheEndIsClosed() throws Exception {
    try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
      Factory factory = new Factory(server.getLocalPort());
      AtomicReference<Runnable> atCheck = new AtomicReference<>(() -> {});
      Connections connections = new Connections(new Opening(new PooledConnectionProvider(factory))) {
        @Override
        boolean isCurrent(Pool<Connection> node) {
          atCheck.getAndSet(() -> {}).run();
          return super.isCurrent(node);
        }
      };
      AtomicReference<Connection> used = new AtomicReference<>();
      connections.redirected(CHECK, (node, connection) -> {
        used.set(connection);
        atCheck.set(connections::close);
        return null;
      });
      assertFalse(used.get().isConnected());
    }
  }

  private interface Work {
    Object run() throws Exception;
  }

  private static Object nested(Connections connections, Work work) {
    return unchecked(() -> connections.redirected(CHECK, (node, connection) -> unchecked(work)));
  }

  private static Object unchecked(Work work) {
    try {
      return work.run();
    } catch (Exception fault) {
      throw new IllegalStateException(fault);
    }
  }

  /** The attempts of all calls wait for one client that is being made. */
  @Test
  void aClientThatHangsWhileItIsMadeTakesOneThread() throws Exception {
    CountDownLatch isOver = new CountDownLatch(1);
    Supplier<UnifiedJedis> jedis = () -> {
      try {
        isOver.await();
      } catch (InterruptedException interrupt) {
        throw new IllegalStateException(interrupt);
      }
      throw new JedisConnectionException("no cluster yet");
    };
    long before = threads();
    try (Locks locks = new Locks(new JedisLink(jedis), Duration.ofMillis(20), Observer.LOGGING)) {
      for (int call = 0; call < 20; call++) {
        assertThrows(UnavailableException.class, () -> locks.lock("k").tryLock());
      }
      assertTrue(threads() - before <= 2, threads() - before + " more threads");
    } finally {
      isOver.countDown();
    }
  }

  private static long threads() {
    return Thread.getAllStackTraces().keySet().stream()
        .filter(thread -> thread.getName().startsWith("redis-lock-jedis")).count();
  }
}
