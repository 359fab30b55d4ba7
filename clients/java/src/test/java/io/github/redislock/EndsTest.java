package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Grants that end at a bad moment, on a link whose replies the test decides. */
class EndsTest {
  private static final byte[] TOKEN = "token".getBytes();

  /** A link that grants each ACQUIRE, and replies to the other commands when the test says so. */
  private static class ScriptedLink extends BareLink {
    final List<Command> sent = new ArrayList<>();
    final List<CompletableFuture<Object>> replies = new ArrayList<>();

    @Override
    public synchronized CompletableFuture<Object> send(Command command, Duration limit) {
      if (command.name().equals("LOCK.ACQUIRE")) return CompletableFuture.completedFuture(granted());
      CompletableFuture<Object> reply = new CompletableFuture<>();
      sent.add(command);
      replies.add(reply);
      return reply;
    }

    static List<Object> granted() {
      return List.of(new byte[0], 7L);
    }

    synchronized int count() {
      return sent.size();
    }

    synchronized void reply(int number, Object value) {
      replies.get(number).complete(value);
    }

    @Override
    public Optional<Turn> turn(byte[] key, Runnable announced) {
      return Optional.of(new BareTurn());
    }
  }

  /** A releaseAll between a grant and its arrival at the lock object leaves the object usable. */
  @Test
  void aGrantMayEndBeforeItArrives() {
    ScriptedLink link = new ScriptedLink();
    try (Locks locks = new Locks(link)) {
      RedisLock lock = locks.lock("k");
      Grant grant = new Grant(lock, TOKEN, link, null, 7, System.nanoTime());
      grant.releaseAll();
      locks.holds(lock, grant);
      lock.settled(new Acquisition(lock, null, null), grant);
      assertTrue(lock.tryAcquire().isPresent());
      assertEquals(7, lock.fence());
    }
  }

  /** A thread whose grant was lost before it arrived hears of the loss. */
  @Test
  void aLossBeforeTheArrivalIsToldAtUnlock() {
    ScriptedLink link = new ScriptedLink();
    try (Locks locks = new Locks(link)) {
      RedisLock lock = locks.lock("k");
      Thread owner = Thread.currentThread();
      Grant grant = new Grant(lock, TOKEN, link, owner, 7, System.nanoTime() - TimeUnit.HOURS.toNanos(1));
      grant.loseIfOver();
      lock.settled(new Acquisition(lock, null, owner), grant);
      assertThrows(LockLostException.class, lock::unlock);
      assertTrue(lock.tryLock());
    }
  }

  @Test
  void aSecondReleaseIsNoLoss() {
    ScriptedLink link = new ScriptedLink();
    try (Locks locks = new Locks(link)) {
      Grant grant = new Grant(locks.lock("k"), TOKEN, link, null, 7, System.nanoTime());
      CompletableFuture<Boolean> first = grant.releaseAll();
      link.reply(0, 1L);
      assertTrue(first.join());
      assertTrue(grant.releaseAll().join());
      assertFalse(grant.isLost());
    }
  }

  /** On two connections a renewal could overtake the command that says how long the lock stays. */
  @Test
  void theLastLeaseIsSetAfterTheRenewal() throws Exception {
    ScriptedLink link = new ScriptedLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(8), Observer.LOGGING)) {
      LockOptions options = LockOptions.defaults().lease(Duration.ofSeconds(9)).leastHold(Duration.ofMinutes(1));
      Hold hold = locks.lock(options, "k").tryAcquire().orElseThrow();
      TestServer.until(() -> link.count() == 1);
      CompletableFuture<Boolean> released = hold.releaseAsync();
      assertEquals(1, link.count());
      link.reply(0, 1L);
      TestServer.until(() -> link.count() == 2);
      assertEquals("LOCK.EXTEND", link.sent.get(1).name());
      link.reply(1, 1L);
      assertTrue(released.get(8, TimeUnit.SECONDS));
    }
  }

  /** Returns a grant of 3 s that was made now. */
  private static Grant grantOf(Locks locks, Link link) {
    RedisLock lock = locks.lock(LockOptions.defaults().lease(Duration.ofSeconds(3)), "k");
    return new Grant(lock, TOKEN, link, null, 7, System.nanoTime());
  }

  /** A renewal after the extension would set the lease from before it. */
  @Test
  void aRenewalWaitsForAnExtension() throws Exception {
    ScriptedLink link = new ScriptedLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), Observer.LOGGING)) {
      Grant grant = grantOf(locks, link);
      CompletableFuture<Boolean> extended = grant.extend(Duration.ofMinutes(10));
      long dueNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(1200);
      TestServer.until(() -> link.count() == 2 || System.nanoTime() > dueNanos);
      link.reply(0, 1L);
      assertTrue(extended.get(20, TimeUnit.SECONDS));
      TestServer.until(() -> link.count() == 2);
      assertEquals("600000", new String(link.sent.get(1).arguments().get(2)));
      link.reply(1, 1L);
      assertTrue(grant.remaining().compareTo(Duration.ofMinutes(9)) > 0);
    }
  }

  /** On two connections a renewal could overtake the extension. */
  @Test
  void anExtensionWaitsForARenewal() throws Exception {
    ScriptedLink link = new ScriptedLink();
    try (Locks locks = new Locks(link, Duration.ofSeconds(20), Observer.LOGGING)) {
      Grant grant = grantOf(locks, link);
      TestServer.until(() -> link.count() == 1);
      CompletableFuture<Boolean> extended = grant.extend(Duration.ofMinutes(10));
      assertEquals(1, link.count());
      link.reply(0, 1L);
      TestServer.until(() -> link.count() == 2);
      assertEquals("600000", new String(link.sent.get(1).arguments().get(2)));
      link.reply(1, 1L);
      assertTrue(extended.get(20, TimeUnit.SECONDS));
    }
  }

  /** A server whose first grant reads as old, and that has given the lock to somebody else since then. */
  private static final class OldGrantLink extends ScriptedLink {
    private int queued;

    @Override
    public synchronized CompletableFuture<Object> send(Command command, Duration limit) {
      if (!command.name().equals("LOCK.QUEUE")) return CompletableFuture.completedFuture(1L);
      if (queued++ > 0) return CompletableFuture.completedFuture(2L);
      CompletableFuture<Object> late = new CompletableFuture<>();
      late.completeOnTimeout(granted(), 100, TimeUnit.MILLISECONDS);
      return late;
    }
  }

  @Test
  void contentionAfterAnOldGrantIsNoOutage() {
    try (Locks locks = new Locks(new OldGrantLink())) {
      RedisLock lock = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(150)), "k");
      assertInstanceOf(NotAcquiredException.class,
          assertThrows(LockException.class, () -> lock.acquire(Duration.ofSeconds(2))));
    }
  }
}
