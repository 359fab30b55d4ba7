package io.github.redislock.spring.integration;

import static io.github.redislock.TestServer.isRefused;
import static io.github.redislock.TestServer.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatExceptionOfType;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;
import static org.assertj.core.api.Assertions.assertThatIllegalStateException;

import io.github.redislock.OneServer;
import io.github.redislock.RefusedException;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.Test;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.scheduling.concurrent.SimpleAsyncTaskScheduler;

class RedisLockRegistryTest extends OneServer {
  @Test
  void aKeyHasOneLockWhichItsThreadReenters() throws Exception {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r");
    Lock lock = registry.obtain("a");
    assertThat(registry.obtain("a")).isSameAs(lock).isEqualTo(lock);
    assertThat(registry.obtain("b")).isNotSameAs(lock).isNotEqualTo(lock);
    lock.lock();
    lock.lockInterruptibly();
    assertThat(lock.tryLock()).isTrue();
    assertThat(elsewhere(lock::tryLock)).isEqualTo(false);
    lock.unlock();
    lock.unlock();
    assertThat(server.exists("r:a")).isTrue();
    lock.unlock();
    assertThat(server.exists("r:a")).isFalse();
    assertThat(lock.toString()).contains("r:a");
    assertThatIllegalArgumentException().isThrownBy(() -> registry.obtain(42));
  }

  @Test
  void registriesExcludeEachOtherAndWaitInTheServersQueue() throws Exception {
    Lock ours = new RedisLockRegistry(locks, "r").obtain("a");
    Lock theirs = new RedisLockRegistry(locks, "r").obtain("a");
    ours.lock();
    assertThat(theirs.tryLock()).isFalse();
    until(() -> isRefused(() -> theirs.tryLock(500, TimeUnit.MILLISECONDS)));
    CompletableFuture<Boolean> waiting = CompletableFuture.supplyAsync(() -> call(() -> {
      boolean granted = theirs.tryLock(20, TimeUnit.SECONDS);
      theirs.unlock();
      return granted;
    }));
    until(() -> server.waiters("r:a") == 1);
    ours.unlock();
    assertThat(waiting.get(20, TimeUnit.SECONDS)).isTrue();
  }

  @Test
  void anotherThreadCantUnlock() {
    Lock lock = new RedisLockRegistry(locks, "r").obtain("a");
    lock.lock();
    assertThatExceptionOfType(CompletionException.class)
        .isThrownBy(() -> CompletableFuture.runAsync(lock::unlock).join())
        .withCauseInstanceOf(IllegalStateException.class)
        .withMessageContaining("You do not own lock at r:a");
    lock.unlock();
    assertThatIllegalStateException().isThrownBy(lock::unlock);
  }

  @Test
  void aLossIsToldAtUnlock() {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r", 100);
    Lock lock = registry.obtain("a");
    lock.lock();
    until(() -> !server.exists("r:a"));
    assertThatExceptionOfType(ConcurrentModificationException.class).isThrownBy(lock::unlock);
    assertThatIllegalStateException().isThrownBy(lock::unlock);
    assertThat(lock.tryLock()).isTrue();
  }

  @Test
  void aRegistryWithASchedulerRenews() {
    try (SimpleAsyncTaskScheduler scheduler = new SimpleAsyncTaskScheduler()) {
      RedisLockRegistry registry = new RedisLockRegistry(locks, "r", Duration.ofSeconds(3));
      registry.setRenewalTaskScheduler(scheduler);
      Lock lock = registry.obtain("a");
      lock.lock();
      long fence = registry.fence("a");
      until(() -> leaseMs("r:a") < 2500);
      until(() -> leaseMs("r:a") > 2500);
      assertThat(registry.fence("a")).isEqualTo(fence).isPositive();
      lock.unlock();
    }
  }

  @Test
  void theOwnerRenewsItsLease() {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r", 5_000);
    Lock lock = registry.obtain("a");
    assertThatIllegalStateException().isThrownBy(() -> registry.renewLock("a"));
    assertThatIllegalStateException().isThrownBy(() -> registry.renewLock("b"));
    lock.lock();
    server.command("PEXPIRE", "r:a", "2000");
    registry.renewLock("a");
    assertThat(leaseMs("r:a")).isBetween(2_001L, 5_000L);
    registry.renewLock("a", Duration.ofSeconds(50));
    assertThat(leaseMs("r:a")).isBetween(20_000L, 50_000L);
    assertThatExceptionOfType(CompletionException.class)
        .isThrownBy(() -> CompletableFuture.runAsync(() -> registry.renewLock("a")).join())
        .withCauseInstanceOf(IllegalStateException.class);
    server.command("DEL", "r:a");
    assertThatIllegalStateException().isThrownBy(() -> registry.renewLock("a"));
    assertThatIllegalStateException().isThrownBy(() -> registry.fence("a"));
  }

  @Test
  void onlyUnusedLocksAreForgotten() {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r");
    Lock held = registry.obtain("held");
    Lock used = registry.obtain("used");
    Lock idle = registry.obtain("idle");
    held.lock();
    used.lock();
    used.unlock();
    registry.expireUnusedOlderThan(60_000);
    assertThat(registry.obtain("used")).isSameAs(used);
    registry.expireUnusedOlderThan(-1);
    assertThat(registry.obtain("used")).isNotSameAs(used);
    assertThat(registry.obtain("held")).isSameAs(held);
    assertThat(registry.obtain("idle")).isNotSameAs(idle);
    held.unlock();
  }

  @Test
  void theLocksThatWereObtainedLastAreRemembered() {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r");
    registry.setCacheCapacity(2);
    Lock held = registry.obtain("held");
    held.lock();
    Lock a = registry.obtain("a");
    Lock b = registry.obtain("b");
    assertThat(registry.obtain("held")).isSameAs(held);
    assertThat(registry.obtain("b")).isSameAs(b);
    assertThat(registry.obtain("a")).isNotSameAs(a);
    held.unlock();
  }

  @Test
  void aLockForWhichAThreadWaitsIsRemembered() throws Exception {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r");
    Lock waited = registry.obtain("a");
    server.command("LOCK.ACQUIRE", "r:a", "other", "PX", "60000");
    CompletableFuture<Void> waiting = CompletableFuture.runAsync(() -> {
      waited.lock();
      waited.unlock();
    });
    until(() -> server.waiters("r:a") == 1);
    registry.expireUnusedOlderThan(-1);
    registry.setCacheCapacity(2);
    registry.obtain("b");
    registry.obtain("c");
    assertThat(registry.obtain("a")).isSameAs(waited);
    server.command("LOCK.RELEASE", "r:a", "other");
    waiting.get(20, TimeUnit.SECONDS);
  }

  @Test
  void theCapacityHoldsIfAllLocksAreHeld() {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r");
    registry.setCacheCapacity(2);
    Lock first = registry.obtain("first");
    Lock second = registry.obtain("second");
    first.lock();
    second.lock();
    assertThatExceptionOfType(CannotAcquireLockException.class)
        .isThrownBy(() -> registry.obtain("third"))
        .withMessageStartingWith("There are already 2 unique Redis locks acquired");
    assertThat(registry.obtain("first")).isSameAs(first);
    second.unlock();
    assertThat(registry.obtain("third")).isNotNull();
    assertThat(registry.obtain("first")).isSameAs(first);
    first.unlock();
  }

  /** The lock of a thread that died holding it would stay in the cache for good. */
  @Test
  void theLocksOfDeadThreadsAreForgotten() throws Exception {
    RedisLockRegistry registry = new RedisLockRegistry(locks, "r");
    Lock orphan = registry.obtain("a");
    Thread dying = new Thread(orphan::lock);
    dying.start();
    dying.join();
    registry.expireUnusedOlderThan(-1);
    assertThat(registry.obtain("a")).isNotSameAs(orphan);
  }

  @Test
  void aFurtherHoldBeginsTheLeaseAnew() {
    Lock lock = new RedisLockRegistry(locks, "r", 60_000).obtain("a");
    lock.lock();
    server.command("PEXPIRE", "r:a", "20000");
    lock.lock();
    assertThat(leaseMs("r:a")).isGreaterThan(20_000L);
    server.command("DEL", "r:a");
    assertThatExceptionOfType(ConcurrentModificationException.class).isThrownBy(lock::lock);
    assertThatExceptionOfType(ConcurrentModificationException.class).isThrownBy(lock::unlock);
  }

  @Test
  void anErrorReplyFailsTheAcquire() {
    server.command("SET", "r:a", "a string");
    Lock lock = new RedisLockRegistry(locks, "r").obtain("a");
    assertThatExceptionOfType(CannotAcquireLockException.class)
        .isThrownBy(lock::lock)
        .withMessageContaining("Failed to lock mutex at r:a")
        .withCauseInstanceOf(RefusedException.class);
  }

  private long leaseMs(String key) {
    return (Long) server.command("PTTL", key);
  }

  private static Object elsewhere(Callable<?> work) {
    return CompletableFuture.supplyAsync(() -> call(work)).join();
  }

  private static <T> T call(Callable<T> work) {
    try {
      return work.call();
    } catch (Exception error) {
      throw new CompletionException(error);
    }
  }
}
