package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.redislock.jedis.JedisLink;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.commons.pool2.BasePooledObjectFactory;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.DefaultPooledObject;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Waits on Jedis that end at the moment of their reply: their connection is closed, so nobody may use it again. */
class EndedWaitsTest {
  private static final Duration LIMIT = Duration.ofSeconds(20);
  private static final Command WAIT = Command.of("WAIT", List.of("k".getBytes()), "token", "PX", 60_000, "BLOCK", 0);
  private static final Command CHECK = Command.of("CHECK", List.of("k".getBytes()), "token");

  private interface Work {
    void run() throws Exception;
  }

  /** A connection that counts its commands, and runs work at the moment when another thread ends its wait. */
  private static final class Watched extends Connection {
    final AtomicInteger commands = new AtomicInteger();
    final CountDownLatch reads = new CountDownLatch(1);
    final CountDownLatch hasRead = new CountDownLatch(1);
    final CompletableFuture<Void> ended = new CompletableFuture<>();
    volatile Thread reader;
    volatile Work atEnd = () -> {};
    volatile Work atSend = () -> {};

    Watched(int port) {
      super(new HostAndPort("127.0.0.1", port));
    }

    @Override
    public void sendCommand(CommandArguments words) {
      commands.incrementAndGet();
      unchecked(atSend);
      super.sendCommand(words);
    }

    @Override
    public Object getOne() {
      reader = Thread.currentThread();
      reads.countDown();
      try {
        return super.getOne();
      } finally {
        hasRead.countDown();
      }
    }

    @Override
    public void setBroken() {
      if (Thread.currentThread() != reader && !ended.isDone()) {
        try {
          atEnd.run();
          ended.complete(null);
        } catch (Exception fault) {
          ended.completeExceptionally(fault);
        }
      }
      super.setBroken();
    }
  }

  private static final class Factory extends BasePooledObjectFactory<Connection> {
    final Queue<Watched> made = new ConcurrentLinkedQueue<>();
    volatile Work atCreate = () -> {};
    volatile Work atSend = () -> {};
    private final int port;

    Factory(int port) {
      this.port = port;
    }

    @Override
    public Connection create() {
      Watched connection = new Watched(port);
      connection.atSend = atSend;
      connection.connect();
      made.add(connection);
      unchecked(atCreate);
      return connection;
    }

    @Override
    public PooledObject<Connection> wrap(Connection connection) {
      return new DefaultPooledObject<>(connection);
    }
  }

  private static void unchecked(Work work) {
    try {
      work.run();
    } catch (Exception fault) {
      throw new IllegalStateException(fault);
    }
  }

  private interface End {
    void of(CompletableFuture<Object> wait, TestServer server) throws Exception;
  }

  @Test
  void aCancelledWait() throws Exception {
    leavesItsConnection((wait, server) -> wait.cancel(true));
  }

  @Test
  void aWaitAtASilentServer() throws Exception {
    leavesItsConnection((wait, server) -> server.stop());
  }

  @Test
  void aLinkThatIsClosedWhileAWaitConnects() throws Exception {
    leavesNobodyWaiting((factory, close) -> factory.atCreate = close);
  }

  @Test
  void aLinkThatIsClosedWhileAWaitIsSent() throws Exception {
    leavesNobodyWaiting((factory, close) -> factory.atSend = close);
  }

  private interface Moment {
    void of(Factory factory, Work close);
  }

  private static void leavesNobodyWaiting(Moment moment) throws Exception {
    try (TestServer server = new TestServer()) {
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      Factory factory = new Factory(server.port());
      try (Link link = new JedisLink(new PooledConnectionProvider(factory))) {
        moment.of(factory, link::close);
        CompletableFuture<Object> wait = link.block(WAIT, Duration.ZERO, LIMIT, () -> {});
        until(wait::isCompletedExceptionally);
        until(() -> server.waiters("k") == 0);
      }
    }
  }

  private static void leavesItsConnection(End end) throws Exception {
    try (TestServer server = new TestServer()) {
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      Factory factory = new Factory(server.port());
      try (Link link = new JedisLink(new PooledConnectionProvider(factory))) {
        CompletableFuture<Object> wait = link.block(WAIT, Duration.ZERO, LIMIT, () -> {});
        until(() -> server.waiters("k") == 1);
        Watched waiting = factory.made.peek();
        waiting.reads.await();
        waiting.atEnd = () -> {
          server.goOn();
          server.command("LOCK.RELEASE", "k", "other");
          waiting.hasRead.await();
          // The reader does what it does with the connection.
          Thread.sleep(200);
          link.send(CHECK, LIMIT).get(20, TimeUnit.SECONDS);
        };
        end.of(wait, server);
        waiting.ended.get(20, TimeUnit.SECONDS);
        assertEquals(1, waiting.commands.get());
      }
    }
  }
}
