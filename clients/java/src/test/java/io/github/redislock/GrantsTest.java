package io.github.redislock;

import static io.github.redislock.TestServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.spi.Fault;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Options, acquires and grants on a link whose replies the tests decide. */
class GrantsTest {
  private static final Duration TIMEOUT = Duration.ofMillis(400);

  private final List<UnavailableException> outages = new CopyOnWriteArrayList<>();
  private final AtomicInteger losses = new AtomicInteger();

  private final ScriptedLink link = ScriptedLink.granting();
  private final Locks locks = new Locks(link, TIMEOUT, new LockObserver() {
    @Override
    public void unavailable(UnavailableException outage) {
      outages.add(outage);
    }

    @Override
    public void lost(Hold hold) {
      losses.incrementAndGet();
    }
  });

  @AfterEach
  void closeLocks() {
    locks.close();
  }

  @Test
  void aLinkageErrorEndsTheCallAtOnce() {
    link.script = (command, until) -> {
      throw new NoClassDefFoundError("io/netty/Missing");
    };
    assertTimeoutPreemptively(Duration.ofSeconds(5),
        () -> assertThrows(NoClassDefFoundError.class, locks.lock("k")::lock));
    assertEquals(List.of(), outages);
  }

  /** A renewal in flight neither holds the lock again nor undoes the release. */
  @Test
  void aReleaseRacesARenewal() throws Exception {
    CountDownLatch isRenewing = new CountDownLatch(1);
    CountDownLatch goesOn = new CountDownLatch(1);
    link.script = (command, until) -> {
      if (command.name().equals("LOCK.EXTEND")) {
        isRenewing.countDown();
        goesOn.await();
      }
      return ScriptedLink.granted(command);
    };
    LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(300));
    Hold hold = locks.lock(options, "k").acquire();
    isRenewing.await();
    assertTrue(hold.release());
    goesOn.countDown();
    until(() -> locks.held.isEmpty());
    assertEquals(Duration.ZERO, hold.left());
    assertFalse(hold.isLost());
    assertEquals(0, losses.get());
  }

  @Test
  void aRefusedRenewalIsToldOnceAndRepeated() throws Exception {
    link.script = (command, until) -> {
      if (command.name().equals("LOCK.EXTEND")) throw Fault.reply("NOPERM no", null);
      return ScriptedLink.granted(command);
    };
    Hold hold = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(900)), "k").acquire();
    until(() -> link.sent("EXTEND").size() >= 3);
    assertEquals(1, outages.size());
    until(hold::isLost);
    until(() -> losses.get() == 1);
    assertThrows(LockLostException.class, hold::close);
  }

  /** The program hears of the losses of its holds alone. */
  @Test
  void aGrantThatTheProgramNeverGotIsNoLoss() throws Exception {
    AtomicBoolean isGone = new AtomicBoolean();
    link.script = (command, until) -> {
      boolean isRefused = command.name().equals("LOCK.EXTEND") && isGone.getAndSet(false);
      return isRefused ? (Object) 0L : ScriptedLink.granted(command);
    };
    List<Hold> told = new CopyOnWriteArrayList<>();
    LockOptions options = LockOptions.defaults().onLost(told::add);
    for (int count = 0; count < 50; count++) {
      isGone.set(true);
      assertEquals(Optional.empty(), locks.adopt(options, "token", 1, "k"));
      isGone.set(true);
      locks.lock(options.session(), "k").acquire().release();
      assertFalse(isGone.get());
    }
    Hold hold = locks.lock(options, "k").acquire();
    isGone.set(true);
    assertFalse(hold.extend(Duration.ofSeconds(60)));
    until(() -> losses.get() > 0 && told.contains(hold));
    assertEquals(1, losses.get());
    assertEquals(List.of(hold), told);
  }

  /** A hold that another thread is just releasing keeps none of the others. */
  @Test
  void theReleaseOfAllRacesOthers() throws Exception {
    for (int round = 0; round < 200; round++) {
      List<Hold> holds = new ArrayList<>();
      for (int key = 0; key < 100; key++) holds.add(locks.lock("k" + key).acquire());
      List<Grant> all = List.copyOf(locks.held);
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

  @Test
  void aCollectedHoldIsALossThatIsTold() {
    CompletableFuture<Hold> told = new CompletableFuture<>();
    LockOptions options = LockOptions.defaults().onLost(told::complete);
    assertTrue(locks.lock(options, "k").tryAcquire().isPresent());
    until(() -> {
      System.gc();
      return link.sent("RELEASE").size() == 1;
    });
    until(() -> losses.get() == 1 && told.isDone());
    assertEquals(List.of("k"), told.join().keys());
  }

  @Test
  void aLockOfAThreadThatEndedIsALossThatIsTold() throws Exception {
    LockOptions options = LockOptions.defaults().lease(Duration.ofMillis(600));
    Thread thread = new Thread(() -> locks.lock(options, "k").lock());
    thread.start();
    thread.join();
    until(() -> losses.get() == 1 && link.sent("RELEASE").size() == 1);
  }

  @Test
  void aDetachedHoldIsLeftAlone() throws Exception {
    Hold hold = locks.lock(LockOptions.defaults().lease(Duration.ofMillis(300)), "k").acquire();
    hold.detach();
    assertThrows(IllegalMonitorStateException.class, hold::release);
    assertThrows(IllegalMonitorStateException.class, hold::detach);
    hold.close();
    until(() -> locks.held.isEmpty());
    Hold session = locks.lock(LockOptions.defaults().session(), "k").acquire();
    assertThrows(IllegalStateException.class, session::detach);
    session.close();
    assertEquals(1, link.sent("RELEASE").size());
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

  @Test
  void locksWithoutOptionsHaveTheDefaultsOfTheirLocks() {
    LockOptions defaults = LockOptions.defaults().lease(Duration.ofSeconds(7)).shared();
    try (Locks locks = new Locks(
        ScriptedLink.granting(), TIMEOUT, LockObserver.LOGGING, defaults)) {
      assertEquals("RedisLock[k, shared, lease PT7S]", locks.lock("k").toString());
      RedisLock own = locks.lock(LockOptions.defaults(), "k");
      assertEquals("RedisLock[k, exclusive, lease PT30S]", own.toString());
    }
  }

  @Test
  void theLongestHoldLimitsRenewedLeasesOnly() {
    LockOptions options = LockOptions.defaults().lease(Duration.ofHours(48));
    long longest = Duration.ofHours(24).plusSeconds(1).toMillis();
    assertEquals(longest, options.firstLeaseMs());
    assertEquals(2 * longest - 2000, options.withoutRenewal().firstLeaseMs());
    assertEquals(longest, options.withoutRenewal().session().firstLeaseMs());
  }

  @Test
  void theMarginIsATenthOfTheLeaseAndAtMostASecond() {
    LockOptions options = LockOptions.defaults();
    assertEquals(1000, options.marginOrDefaultMs());
    assertEquals(40, options.lease(Duration.ofMillis(400)).marginOrDefaultMs());
  }
}
