package io.github.redislock;

import static io.github.redislock.TestServer.isGranted;
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
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.provider.EnumSource;

/** Locks with a connection of their own. */
@ParameterizedClass
@EnumSource(TestServer.Kind.class)
class SessionsTest extends OneServer {
  SessionsTest(TestServer.Kind kind) {
    super(kind);
  }

  /** A session outlives a server that hangs for less than the lease. */
  @Test
  void aStallOfTheServerEndsNoSession() throws Exception {
    try (Locks hasty = new Locks(server.link(kind))) {
      RedisLock lock = hasty.lock(LockOptions.defaults().lease(Duration.ofSeconds(9)).session(), "k");
      until(() -> isGranted(lock));
      server.stop();
      // A renewal is due after 3 s, and its reply comes late.
      Thread.sleep(5000);
      server.goOn();
      until(() -> lock.isLost() || lock.left().toMillis() > 7_000);
      assertFalse(lock.isLost());
      lock.unlock();
    }
  }

  /** The tie gets no reply, so a try ends in time, and a wait goes on with another token. */
  @Test
  void aTieWithoutAReplyIsAnOutage() throws Exception {
    try (Locks stopped = new Locks(stopping(server.link(kind)))) {
      RedisLock lock = stopped.lock(LockOptions.defaults().session(), "k");
      assertTimeoutPreemptively(
          Duration.ofSeconds(5), () -> assertThrows(UnavailableException.class, lock::tryAcquire));
      Thread.sleep(2000);
      until(() -> !server.exists("k"));
      try (Hold hold = assertTimeoutPreemptively(Duration.ofSeconds(10), () -> lock.acquire())) {
        assertTrue(hold.isOwned());
      }
    }
  }

  /** Returns a link to a server that hangs for 2 s at each of the first two ties. */
  private Link stopping(Link whole) {
    AtomicInteger ties = new AtomicInteger();
    return before(whole, command -> {
      if (command.name().equals("LOCK.EXTEND") && ties.incrementAndGet() <= 2) {
        server.stop();
        CompletableFuture.delayedExecutor(2, TimeUnit.SECONDS).execute(server::goOn);
      }
    });
  }

  /** After an error no release is to come. */
  @Test
  void anErrorOfAReleaseEndsTheSession() throws Exception {
    try (Locks failing = TestServer.locks(failing(server.link(kind)))) {
      Hold hold = failing.lock(LockOptions.defaults().session(), "k").acquire();
      assertThrows(NoClassDefFoundError.class, hold::release);
      until(() -> !server.exists("k"));
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
  @Test
  void aLostConnectionEndsItsSession() throws Exception {
    LockOptions options = LockOptions.defaults().lease(Duration.ofSeconds(3)).session();
    Hold hold = locks.lock(options, "k").acquire();
    server.command("CLIENT", "KILL", "TYPE", "normal");
    until(() -> !server.exists("k"));
    until(hold::isLost);
    assertTrue(hold.left().isZero());
    assertFalse(hold.release());
  }

  /** The lease would be over in 30 s. */
  @Test
  void anAdoptedSessionEndsWithItsConnection() throws Exception {
    Hold hold = locks.lock("k").acquire();
    hold.detach();
    LockOptions options = LockOptions.defaults().session();
    Hold adopted = locks.adopt(options, hold.token(), hold.fence(), "k").orElseThrow();
    server.command("CLIENT", "KILL", "TYPE", "normal");
    until(() -> !server.exists("k"));
    assertFalse(adopted.release());
  }

  @Test
  void closingEndsSessions() throws Exception {
    locks.lock(LockOptions.defaults().session(), "k").lock();
    locks.close();
    until(() -> !server.exists("k"));
    until(() -> server.connections().size() <= 1);
  }
}
