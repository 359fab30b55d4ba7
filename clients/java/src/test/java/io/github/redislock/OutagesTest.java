package io.github.redislock;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Outages during waits by LOCK.WAIT, which has no reply before its end. */
class OutagesTest {
  /** A link whose server executes every command that doesn't wait. */
  private abstract static class WaitingLink extends BareLink {
    @Override
    public CompletableFuture<Object> send(Command command, Duration limit) {
      return CompletableFuture.completedFuture(1L);
    }
  }

  /** A link that loses every other LOCK.WAIT at once, and has the reply to the next one shortly after its end. */
  private static final class LosingLink extends WaitingLink {
    private boolean isLost;

    @Override
    public synchronized CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
      isLost = !isLost;
      if (isLost) return CompletableFuture.failedFuture(new IllegalStateException("a lost connection"));
      progress.sending();
      // The limit is 200 ms later than the end.
      return new CompletableFuture<>().completeOnTimeout(null, limit.toMillis() - 190, TimeUnit.MILLISECONDS);
    }
  }

  @Test
  void contentionAfterALostConnectionIsNoOutage() {
    try (Locks locks = new Locks(new LosingLink())) {
      RedisLock lock = locks.lock("k");
      until(() -> isRefused(() -> lock.tryAcquire(Duration.ofMillis(300))));
    }
  }

  /** A link whose first four LOCK.WAITs fail, every other one after the server has shown that it is there. */
  private static final class FlakyLink extends WaitingLink {
    private int waits;

    @Override
    public synchronized CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
      waits++;
      progress.sending();
      if (waits % 2 == 0) progress.alive();
      return waits > 4 ? new CompletableFuture<>() : CompletableFuture.failedFuture(new IllegalStateException("lost " + waits));
    }

    synchronized int waits() {
      return waits;
    }
  }

  @Test
  void everyOutageIsToldOnce() {
    List<String> told = Collections.synchronizedList(new ArrayList<>());
    Observer observer = new Observer() {
      @Override
      public void unavailable(UnavailableException outage) {
        told.add(outage.getCause().getMessage());
      }
    };
    FlakyLink link = new FlakyLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), observer)) {
      locks.lock("k").acquireAsync();
      until(() -> link.waits() == 5 && told.size() == 3);
      assertEquals(Set.of("lost 1", "lost 2", "lost 4"), Set.copyOf(told));
    }
  }

  @Test
  void aWaitOnJedisHearsOfTheServer() throws Exception {
    Command wait = Command.of("WAIT", List.of("k".getBytes()), "token", "PX", 60_000, "BLOCK", 0);
    CountDownLatch isAlive = new CountDownLatch(2);
    Link.Progress progress = new Link.Progress() {
      @Override
      public void sending() {}

      @Override
      public void alive() {
        isAlive.countDown();
      }
    };
    try (TestServer server = new TestServer(); Link link = server.link(TestServer.Kind.JEDIS)) {
      server.command("LOCK.ACQUIRE", "k", "other", "PX", "60000");
      link.block(wait, Duration.ZERO, Duration.ofSeconds(20), progress);
      assertTrue(isAlive.await(20, TimeUnit.SECONDS));
    }
  }
}
