package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Command;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;

/** Replies that come after the end of their grant, on a link whose replies the test decides. */
class ReentryTest {
  private static final byte[] TOKEN = "token".getBytes();
  private static final Duration LEASE = Duration.ofMillis(800);

  /** A link whose replies the test decides. */
  private static final class SilentLink extends BareLink {
    private record Sent(Command command, CompletableFuture<Object> reply) {}

    private final List<Sent> all = new ArrayList<>();

    @Override
    public synchronized CompletableFuture<Object> send(Command command, Duration limit) {
      CompletableFuture<Object> reply = new CompletableFuture<>();
      all.add(new Sent(command, reply));
      return reply;
    }

    synchronized List<String> names() {
      return all.stream().map(each -> each.command.name()).toList();
    }

    /** Replies to the command with this number, once it is sent. */
    void reply(int number, Object value) {
      until(() -> names().size() > number);
      CompletableFuture<Object> reply;
      synchronized (this) {
        reply = all.get(number).reply;
      }
      reply.complete(value);
    }

    void grant(int number, long fence) {
      reply(number, List.of(TOKEN, fence));
    }
  }

  private final SilentLink link = new SilentLink();

  private Locks locks() {
    // A busy machine may need more than the default command timeout.
    return new Locks(link, Duration.ofSeconds(20), Observer.LOGGING);
  }

  private Grant grantOf(RedisLock lock) {
    return new Grant(lock, TOKEN, link, Thread.currentThread(), 7, System.nanoTime());
  }

  /** Lets the server say that the grant is lost, by the reply to the command with this number. */
  private void lose(Grant grant, int number) {
    CompletableFuture<Boolean> extended = grant.extend(LEASE);
    link.reply(number, 0L);
    assertFalse(extended.join());
    assertTrue(grant.isEnded());
  }

  private static void fails(CompletableFuture<?> call, Class<? extends LockException> error) {
    assertInstanceOf(error, assertThrows(CompletionException.class, call::join).getCause());
  }

  @Test
  void anotherHoldIsNoted() {
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock("k"));
      CompletableFuture<Void> again = grant.holdAgain();
      link.grant(0, 7);
      again.join();
      assertEquals(2, grant.holds());
      assertEquals(List.of("LOCK.ACQUIRE"), link.names());
    }
  }

  /** The key had expired, so the server granted the lock anew. */
  @Test
  void aNewGrantAfterTheLossIsReleased() {
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock("k"));
      CompletableFuture<Void> again = grant.holdAgain();
      lose(grant, 1);
      link.grant(0, 8);
      fails(again, LockLostException.class);
      assertEquals(List.of("LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.RELEASE"), link.names());
    }
  }

  /** The holder has lost one of its keys, and released the others, before it reads that it holds them. */
  @Test
  void theSameGrantAfterTheLossIsReleased() {
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock("k", "l"));
      CompletableFuture<Void> again = grant.holdAgain();
      lose(grant, 1);
      link.grant(0, 7);
      fails(again, LockLostException.class);
      assertEquals(List.of("LOCK.MACQUIRE", "LOCK.MEXTEND", "LOCK.MRELEASE", "LOCK.MRELEASE"), link.names());
    }
  }

  /** The process stood still for longer than a lease, so its timer is late too. */
  @Test
  void aReplyOlderThanTheLeaseIsALoss() throws Exception {
    CountDownLatch goesOn = new CountDownLatch(1);
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock(LockOptions.defaults().lease(LEASE).withoutRenewal(), "k"));
      CompletableFuture<Void> again = grant.holdAgain();
      CompletableFuture<Boolean> extended = grant.extend(LEASE);
      pauseTimer(locks, goesOn);
      Thread.sleep(LEASE.plusMillis(100).toMillis());
      link.reply(1, 1L);
      assertFalse(extended.join());
      link.grant(0, 7);
      fails(again, LockLostException.class);
      assertEquals(List.of("LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.RELEASE"), link.names());
    } finally {
      goesOn.countDown();
    }
  }

  private static void pauseTimer(Locks locks, CountDownLatch goesOn) throws Exception {
    CountDownLatch paused = new CountDownLatch(1);
    locks.after(0, () -> {
      paused.countDown();
      try {
        goesOn.await();
      } catch (InterruptedException closed) {
        // The test is over.
      }
    });
    paused.await();
  }

  /** The server may have granted the lock anew, though its reply was lost. */
  @Test
  void anotherHoldWithoutReplyIsReleasedAfterTheLoss() {
    try (Locks locks = new Locks(link, Duration.ofSeconds(2), Observer.LOGGING)) {
      Grant grant = grantOf(locks.lock("k"));
      CompletableFuture<Void> again = grant.holdAgain();
      lose(grant, 1);
      fails(again, UnavailableException.class);
      assertTrue(link.names().contains("LOCK.RELEASE"));
    }
  }

  @Test
  void anExtendThatIsReadAfterTheLossIsRefused() {
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock("k"));
      CompletableFuture<Boolean> extended = grant.extend(LEASE);
      CompletableFuture<Void> heldAgain = grant.holdAgain();
      link.grant(1, 8);
      fails(heldAgain, LockLostException.class);
      link.reply(0, 1L);
      assertFalse(extended.join());
    }
  }

  @Test
  void aLostGrantIsNotConverted() {
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock("k"));
      CompletableFuture<Optional<Grant>> shared = grant.convert(locks.lock(LockOptions.defaults().shared(), "k"), 1);
      lose(grant, 1);
      link.grant(0, 7);
      assertEquals(Optional.empty(), shared.join());
      assertTrue(grant.isLost());
      assertEquals(List.of("LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.RELEASE"), link.names());
    }
  }

  /** Another thread has released all locks. */
  @Test
  void aReleasedGrantIsNotConverted() {
    try (Locks locks = locks()) {
      Grant grant = grantOf(locks.lock("k"));
      CompletableFuture<Optional<Grant>> shared = grant.convert(locks.lock(LockOptions.defaults().shared(), "k"), 1);
      CompletableFuture<Boolean> released = grant.releaseAll();
      link.grant(0, 7);
      link.reply(1, 1L);
      assertEquals(Optional.empty(), shared.join());
      assertTrue(released.join());
      assertFalse(grant.isLost());
      assertEquals(List.of("LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RELEASE"), link.names());
    }
  }

  /** The release of the late grant would end the next one, which has the same token. */
  @Test
  void aChosenTokenIsUsedAgainAfterTheReleaseOfALateGrant() {
    try (Locks locks = locks()) {
      RedisLock lock = locks.lock(LockOptions.defaults().token("token"), "k");
      Grant grant = grantOf(lock);
      lock.settled(new Acquisition(lock, null, Thread.currentThread()), grant);
      CompletableFuture<Void> again = grant.holdAgain();
      lose(grant, 1);
      CompletableFuture<Optional<Hold>> next = lock.tryAcquireAsync(Duration.ZERO);
      assertEquals(List.of("LOCK.ACQUIRE", "LOCK.EXTEND"), link.names());
      link.grant(0, 8);
      fails(again, LockLostException.class);
      assertEquals(List.of("LOCK.ACQUIRE", "LOCK.EXTEND", "LOCK.RELEASE"), link.names());
      link.reply(2, 1L);
      link.grant(3, 9);
      assertEquals(9, next.join().orElseThrow().fence());
    }
  }

  /** A session is confirmed by a second command, whose reply may be as late as that of the first one. */
  @Test
  void aConfirmationOlderThanTheLeaseIsNoGrant() throws Exception {
    try (Locks locks = locks()) {
      RedisLock lock = locks.lock(LockOptions.defaults().lease(LEASE).session(), "k");
      CompletableFuture<Optional<Hold>> hold = lock.tryAcquireAsync(Duration.ZERO);
      int number = 0;
      // The first grant may be old too.
      for (; !link.names().get(number).equals("LOCK.EXTEND"); number++) link.grant(number, 7);
      Thread.sleep(LEASE.plusMillis(100).toMillis());
      link.reply(number, 1L);
      assertEquals("LOCK.ACQUIRE", link.names().get(number + 1));
      assertFalse(hold.isDone());
    }
  }
}
