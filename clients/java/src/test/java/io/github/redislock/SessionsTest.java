package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Locks with a connection of their own. */
class SessionsTest {
  /** A session outlives a server that stands still for less than the lease. */
  @ParameterizedTest
  @EnumSource
  void aStallOfTheServerEndsNoSession(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = new Locks(server.link(kind))) {
      RedisLock lock = locks.lock(LockOptions.defaults().lease(Duration.ofSeconds(9)).session(), "k");
      until(() -> acquired(lock));
      server.stop();
      // A renewal is due after 3 s, and its reply comes late.
      Thread.sleep(5000);
      server.goOn();
      until(() -> lock.isLost() || lock.left().toMillis() > 7_000);
      assertFalse(lock.isLost());
      lock.unlock();
    }
  }

  private static boolean acquired(RedisLock lock) {
    try {
      return lock.tryLock();
    } catch (UnavailableException slow) {
      return false;
    }
  }

  /** The tie gets no reply, so a try ends in time, and a wait goes on with another token. */
  @ParameterizedTest
  @EnumSource
  void aTieWithoutAReplyIsAnOutage(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = new Locks(stopping(server.link(kind), server))) {
      RedisLock lock = locks.lock(LockOptions.defaults().session(), "k");
      assertTimeoutPreemptively(
          Duration.ofSeconds(5), () -> assertThrows(UnavailableException.class, lock::tryAcquire));
      Thread.sleep(2000);
      until(() -> server.command("EXISTS", "k").equals(0L));
      try (Hold hold = assertTimeoutPreemptively(Duration.ofSeconds(10), () -> lock.acquire())) {
        assertTrue(hold.isOwned());
      }
    }
  }

  /** Returns a link to a server that stands still for 2 s at each of the first two ties. */
  private static Link stopping(Link whole, TestServer server) {
    AtomicInteger ties = new AtomicInteger();
    return before(whole, command -> {
      if (command.name().equals("LOCK.EXTEND") && ties.incrementAndGet() <= 2) {
        server.stop();
        CompletableFuture.delayedExecutor(2, TimeUnit.SECONDS).execute(server::goOn);
      }
    });
  }

  /** After an error no release is to come. */
  @ParameterizedTest
  @EnumSource
  void anErrorOfAReleaseEndsTheSession(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = new Locks(
        failing(server.link(kind)), Duration.ofSeconds(8), LockObserver.LOGGING)) {
      Hold hold = locks.lock(LockOptions.defaults().session(), "k").acquire();
      assertThrows(NoClassDefFoundError.class, hold::release);
      until(() -> server.command("EXISTS", "k").equals(0L));
    }
  }

  /** Returns a link that a class is missing for releases. */
  private static Link failing(Link whole) {
    return before(whole, command -> {
      if (command.name().equals("LOCK.RELEASE")) throw new NoClassDefFoundError("io/netty/Missing");
    });
  }

  /** Returns a link that takes a step before it sends a command. */
  private static Link before(Link whole, Consumer<Command> step) {
    return new Link() {
      @Override
      public Object send(Command command, Call call, long until) throws InterruptedException {
        step.accept(command);
        return whole.send(command, call, until);
      }

      @Override
      public void close() {
        whole.close();
      }
    };
  }

  /** The grant is lost at once with its connection, and nothing repairs it. */
  @ParameterizedTest
  @EnumSource
  void aLostConnectionEndsItsSession(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      LockOptions options = LockOptions.defaults().lease(Duration.ofSeconds(3)).session();
      Hold hold = locks.lock(options, "k").acquire();
      server.command("CLIENT", "KILL", "TYPE", "normal");
      until(() -> server.command("EXISTS", "k").equals(0L));
      until(hold::isLost);
      assertTrue(hold.left().isZero());
      assertFalse(hold.release());
    }
  }

  /** The lease would be over in 30 s. */
  @ParameterizedTest
  @EnumSource
  void anAdoptedSessionEndsWithItsConnection(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      Hold hold = locks.lock("k").acquire();
      hold.detach();
      LockOptions options = LockOptions.defaults().session();
      Hold adopted = locks.adopt(options, hold.token(), hold.fence(), "k").orElseThrow();
      server.command("CLIENT", "KILL", "TYPE", "normal");
      until(() -> server.command("EXISTS", "k").equals(0L));
      assertFalse(adopted.release());
    }
  }

  @ParameterizedTest
  @EnumSource
  void closingEndsSessions(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer()) {
      Locks locks = server.locks(kind);
      RedisLock lock = locks.lock(LockOptions.defaults().session(), "k");
      lock.lock();
      locks.close();
      until(() -> server.command("EXISTS", "k").equals(0L));
      until(() -> server.connections() <= 1);
    }
  }
}
