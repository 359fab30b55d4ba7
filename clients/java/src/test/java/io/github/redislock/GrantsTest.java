package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Clock;
import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.ServerError;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** Acquires and grants on a link whose replies the tests decide. */
class GrantsTest {
  private static final Duration TIMEOUT = Duration.ofMillis(400);

  private final List<UnavailableException> outages = new CopyOnWriteArrayList<>();
  private final AtomicInteger losses = new AtomicInteger();

  private Locks locks(ScriptedLink link) {
    return new Locks(link, TIMEOUT, new LockObserver() {
      @Override
      public void unavailable(UnavailableException outage) {
        outages.add(outage);
      }

      @Override
      public void lost(Hold hold) {
        losses.incrementAndGet();
      }
    });
  }

  private static OutageException lost() {
    return OutageException.failed(new IOException("connection lost"));
  }

  private static OutageException late(long until) throws InterruptedException {
    while (Clock.now() < until) Thread.sleep(1);
    return OutageException.late(null);
  }

  @Test
  void aLinkageErrorEndsTheCallAtOnce() {
    ScriptedLink link = new ScriptedLink((command, until) -> {
      throw new NoClassDefFoundError("io/netty/Missing");
    });
    try (Locks locks = locks(link)) {
      assertTimeoutPreemptively(Duration.ofSeconds(5),
          () -> assertThrows(NoClassDefFoundError.class, locks.lock("k")::lock));
      assertEquals(List.of(), outages);
    }
  }

  @Test
  void aThousandWaitsReportOneOutage() throws Exception {
    ScriptedLink link = new ScriptedLink((command, until) -> {
      throw lost();
    });
    List<CompletableFuture<Hold>> waits = new ArrayList<>();
    try (Locks locks = locks(link)) {
      for (int wait = 0; wait < 1000; wait++) waits.add(locks.lock("k" + wait % 10).acquireAsync());
      until(() -> link.sent.size() > 100);
      assertEquals(1, outages.size());
      link.script = (command, until) -> ScriptedLink.granted(command);
      for (CompletableFuture<Hold> wait : waits) wait.get(30, TimeUnit.SECONDS).release();
      link.script = (command, until) -> {
        throw lost();
      };
      locks.lock("k").acquireAsync();
      until(() -> outages.size() == 2);
    }
  }

  /** The limit ends while the latest reply is "not now": no outage, and nothing is left. */
  @Test
  void theEndOfTheLimitIsNoOutage() throws Exception {
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (command.name().equals("LOCK.WAIT")) throw late(until);
      return command.name().equals("LOCK.RELEASE") ? 0L : null;
    });
    try (Locks locks = locks(link)) {
      assertEquals(Optional.empty(), locks.lock("k").tryAcquire(Duration.ofMillis(150)));
      // The WAIT got no reply, so the server turns it away for a lease.
      until(() -> link.sent.contains("RELEASE LEAVE 30000"));
      assertEquals(List.of(), outages);
    }
  }

  @Test
  void aRefusedAcquireLeavesNothing() {
    ScriptedLink link = new ScriptedLink((command, until) -> {
      throw new ServerError("NOPERM no right to " + new String(command.arguments().get(0)), null);
    });
    try (Locks locks = locks(link)) {
      for (int count = 0; count < 200; count++) {
        RefusedException refused = assertThrows(RefusedException.class, locks.lock("k")::tryLock);
        assertTrue(refused.getMessage().endsWith("<token>"), refused.getMessage());
      }
      assertEquals(200, link.sent.size());
    }
  }

  /** A grant whose reply took more than a third of the lease may be over. */
  @Test
  void aLateGrantIsConfirmed() throws Exception {
    CountDownLatch isSlow = new CountDownLatch(1);
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (isSlow.getCount() > 0) {
        isSlow.countDown();
        Thread.sleep(300);
      }
      return ScriptedLink.granted(command);
    });
    try (Locks locks = locks(link)) {
      LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(600)).withoutRenewal();
      Hold hold = locks.lock(options, "k").acquire();
      assertEquals(2, link.sent("ACQUIRE").size());
      assertTrue(hold.left().toMillis() > 300, hold.left().toString());
    }
  }

  /** The release follows commands without a reply, so it is a LEAVE. */
  @Test
  void aGrantAfterALostReplyIsReleasedByLeave() {
    AtomicInteger asked = new AtomicInteger();
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (asked.incrementAndGet() == 1) throw lost();
      return ScriptedLink.granted(command);
    });
    try (Locks locks = locks(link)) {
      assertTrue(locks.lock("k").tryAcquire().orElseThrow().release());
      assertEquals(List.of("RELEASE LEAVE 30000"), link.sent("RELEASE"));
    }
  }

  /** If a reply was lost, the command before may have released the lock. */
  @Test
  void aReleaseWhoseReplyWasLostIsNoLoss() {
    AtomicInteger releases = new AtomicInteger();
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (!command.name().equals("LOCK.RELEASE")) return ScriptedLink.granted(command);
      if (releases.incrementAndGet() == 1) throw lost();
      return 0L;
    });
    try (Locks locks = locks(link)) {
      assertTrue(locks.lock("k").tryAcquire().orElseThrow().release());
      assertEquals(0, losses.get());
    }
  }

  @Test
  void aReleaseGoesOnWithoutItsCaller() {
    ScriptedLink link = ScriptedLink.granting();
    try (Locks locks = locks(link)) {
      Hold hold = locks.lock("k").tryAcquire().orElseThrow();
      link.script = (command, until) -> {
        throw lost();
      };
      UnavailableException told = assertThrows(UnavailableException.class, hold::release);
      assertTrue(told.getMessage().contains("connection lost"), told.getMessage());
      assertThrows(IllegalMonitorStateException.class, hold::release);
      int sent = link.sent("RELEASE").size();
      link.script = (command, until) -> ScriptedLink.granted(command);
      until(() -> link.sent("RELEASE").size() > sent);
    }
  }

  /** A renewal in flight neither holds the lock again nor undoes the release. */
  @Test
  void aReleaseRacesARenewal() throws Exception {
    CountDownLatch isRenewing = new CountDownLatch(1);
    CountDownLatch goesOn = new CountDownLatch(1);
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (command.name().equals("LOCK.EXTEND")) {
        isRenewing.countDown();
        goesOn.await();
      }
      return ScriptedLink.granted(command);
    });
    try (Locks locks = locks(link)) {
      LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(300));
      Hold hold = locks.lock(options, "k").acquire();
      isRenewing.await();
      assertTrue(hold.release());
      goesOn.countDown();
      until(() -> locks.keeper.held().isEmpty());
      assertEquals(Duration.ZERO, hold.left());
      assertFalse(hold.isLost());
      assertEquals(0, losses.get());
    }
  }

  @Test
  void anExtensionRacesARelease() throws Exception {
    CountDownLatch isExtending = new CountDownLatch(1);
    CountDownLatch goesOn = new CountDownLatch(1);
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (!command.name().equals("LOCK.EXTEND")) return ScriptedLink.granted(command);
      isExtending.countDown();
      goesOn.await();
      return 0L;
    });
    try (Locks locks = locks(link)) {
      Hold hold = locks.lock("k").acquire();
      CompletableFuture<Boolean> extended =
          CompletableFuture.supplyAsync(() -> hold.extend(Duration.ofSeconds(60)));
      isExtending.await();
      assertTrue(hold.release());
      goesOn.countDown();
      assertFalse(extended.get(20, TimeUnit.SECONDS));
      assertFalse(hold.isLost());
      assertEquals(0, losses.get());
      assertThrows(IllegalMonitorStateException.class, () -> hold.extend(Duration.ofSeconds(60)));
    }
  }

  @Test
  void aRefusedRenewalIsToldOnceAndRepeated() throws Exception {
    ScriptedLink link = new ScriptedLink((command, until) -> {
      if (command.name().equals("LOCK.EXTEND")) throw new ServerError("NOPERM no", null);
      return ScriptedLink.granted(command);
    });
    try (Locks locks = locks(link)) {
      Hold hold = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(900)), "k").acquire();
      until(() -> link.sent("EXTEND").size() >= 3);
      assertEquals(1, outages.size());
      until(hold::isLost);
      until(() -> losses.get() == 1);
      assertThrows(LockLostException.class, hold::close);
    }
  }

  /** The deadline is a margin before the end of the lease. */
  @Test
  void aLossIsToldAMarginBeforeTheEnd() throws Exception {
    CompletableFuture<Hold> told = new CompletableFuture<>();
    LockOptions options = LockOptions.defaults()
        .lease(Duration.ofSeconds(3)).margin(Duration.ofMillis(2500))
        .withoutRenewal().onLost(told::complete);
    try (Locks locks = locks(ScriptedLink.granting())) {
      long began = System.nanoTime();
      Hold hold = locks.lock(options, "k").acquire();
      assertSame(hold, told.get(20, TimeUnit.SECONDS));
      Duration time = Duration.ofNanos(System.nanoTime() - began);
      assertTrue(time.toMillis() >= 500 && time.toMillis() < 2500, time.toString());
      assertFalse(hold.release());
      assertThrows(IllegalMonitorStateException.class, hold::release);
    }
  }

  /** The program hears of the losses of its holds alone. */
  @Test
  void aGrantThatTheProgramNeverGotIsNoLoss() throws Exception {
    ScriptedLink link = new ScriptedLink((command, until) ->
        command.name().equals("LOCK.EXTEND") ? (Object) 0L : ScriptedLink.granted(command));
    List<Hold> told = new CopyOnWriteArrayList<>();
    LockOptions options = LockOptions.defaults().onLost(told::add);
    try (Locks locks = locks(link)) {
      for (int count = 0; count < 50; count++) {
        assertEquals(Optional.empty(), locks.adopt(options, "token", 1, "k"));
        assertThrows(LockLostException.class, locks.lock(options.session(), "k")::acquire);
      }
      Hold hold = locks.lock(options, "k").acquire();
      assertFalse(hold.extend(Duration.ofSeconds(60)));
      until(() -> losses.get() > 0 && told.contains(hold));
      assertEquals(1, losses.get());
      assertEquals(List.of(hold), told);
    }
  }

  /** A hold that another thread is just releasing keeps none of the others. */
  @Test
  void theReleaseOfAllRacesOthers() throws Exception {
    try (Locks locks = locks(ScriptedLink.granting())) {
      for (int round = 0; round < 200; round++) {
        List<Hold> holds = new ArrayList<>();
        for (int key = 0; key < 100; key++) holds.add(locks.lock("k" + key).acquire());
        List<Grant> all = List.copyOf(locks.keeper.held());
        CompletableFuture<Void> racing = CompletableFuture.runAsync(() -> all.forEach(grant -> {
          try {
            grant.release();
          } catch (IllegalMonitorStateException released) {
            // The other thread came first.
          }
        }));
        locks.releaseAll();
        assertTrue(all.stream().allMatch(Grant::isEnded));
        racing.get(20, TimeUnit.SECONDS);
        holds.forEach(Hold::close);
      }
    }
  }

  @Test
  void aCollectedHoldIsALossThatIsTold() {
    CompletableFuture<Hold> told = new CompletableFuture<>();
    ScriptedLink link = ScriptedLink.granting();
    try (Locks locks = locks(link)) {
      LockOptions options = LockOptions.defaults().onLost(told::complete);
      assertTrue(locks.lock(options, "k").tryAcquire().isPresent());
      until(() -> {
        System.gc();
        return link.sent("RELEASE").size() == 1;
      });
      until(() -> losses.get() == 1 && told.isDone());
      assertEquals(List.of("k"), told.join().keys());
    }
  }

  @Test
  void aLockOfAThreadThatEndedIsALossThatIsTold() throws Exception {
    ScriptedLink link = ScriptedLink.granting();
    try (Locks locks = locks(link)) {
      LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(600));
      Thread thread = new Thread(() -> locks.lock(options, "k").lock());
      thread.start();
      thread.join();
      until(() -> losses.get() == 1 && link.sent("RELEASE").size() == 1);
    }
  }

  @Test
  void aDetachedHoldIsLeftAlone() throws Exception {
    ScriptedLink link = ScriptedLink.granting();
    try (Locks locks = locks(link)) {
      Hold hold = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(300)), "k").acquire();
      hold.detach();
      assertThrows(IllegalMonitorStateException.class, hold::release);
      assertThrows(IllegalMonitorStateException.class, hold::detach);
      hold.close();
      until(() -> locks.keeper.held().isEmpty());
      Hold session = locks.lock(LockOptions.defaults().session(), "k").acquire();
      assertThrows(IllegalStateException.class, session::detach);
      session.close();
      assertEquals(1, link.sent("RELEASE").size());
    }
  }

  @Test
  void aHookThatFailsDoesNoHarm() throws Exception {
    LockObserver failing = new LockObserver() {
      @Override
      public void granted(Hold hold) {
        throw new IllegalStateException("a failing observer");
      }

      @Override
      public void lost(Hold hold) {
        throw new AssertionError("a failing observer");
      }
    };
    CompletableFuture<Hold> told = new CompletableFuture<>();
    LockOptions options = LockOptions.defaults()
        .lease(Duration.ofMillis(100)).withoutRenewal().onLost(told::complete);
    try (Locks locks = new Locks(ScriptedLink.granting(), TIMEOUT, failing)) {
      Hold hold = locks.lock(options, "k").acquire();
      assertSame(hold, told.get(20, TimeUnit.SECONDS));
    }
  }

  /** The last renewal ends a margin after the longest hold. */
  @Test
  void theLongestHoldEndsRenewal() throws Exception {
    ScriptedLink link = ScriptedLink.granting();
    try (Locks locks = locks(link)) {
      LockOptions options =
          LockOptions.defaults().lease(Duration.ofSeconds(1)).longestHold(Duration.ofMillis(1500));
      Hold hold = locks.lock(options, "k").acquire();
      long began = System.nanoTime();
      until(hold::isLost);
      Duration time = Duration.ofNanos(System.nanoTime() - began);
      assertTrue(time.toMillis() > 1300, time.toString());
      List<String> extensions = link.sent("EXTEND");
      assertTrue(extensions.size() <= 5, extensions.toString());
      String last = extensions.get(extensions.size() - 1);
      assertTrue(Integer.parseInt(last.split(" ")[2]) < 1000, last);
    }
  }
}
