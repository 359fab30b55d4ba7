package io.github.redislock.spring.shedlock;

import static io.github.redislock.TestServer.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatExceptionOfType;

import io.github.redislock.Locks;
import io.github.redislock.RefusedException;
import io.github.redislock.TestServer;
import io.github.redislock.UnavailableException;
import java.lang.ref.Cleaner;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** ShedLock's own tests of providers, and those of keys and outages. */
class RedisLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
  private static TestServer server;
  private static Locks locks;

  @BeforeAll
  static void startServer() {
    server = new TestServer();
    locks = server.locks(TestServer.Kind.LETTUCE);
  }

  @AfterAll
  static void closeServer() {
    locks.close();
    server.close();
  }

  @Override
  protected ExtensibleLockProvider getLockProvider() {
    return new RedisLockProvider(locks, "test");
  }

  @Override
  protected void assertUnlocked(String lockName) {
    assertThat(server.exists("job-lock:test:" + lockName)).isFalse();
  }

  @Override
  protected void assertLocked(String lockName) {
    assertThat(server.exists("job-lock:test:" + lockName)).isTrue();
  }

  @Test
  void aLockThatNobodyUnlocksOutlivesItsCollection() {
    assertThat(getLockProvider().lock(lockConfig("dropped"))).isPresent();
    WeakReference<Object> collected = new WeakReference<>(new Object());
    until(() -> {
      System.gc();
      return collected.get() == null;
    });
    // The Cleaner has run by the time it has cleaned what was registered later.
    AtomicBoolean isCleaned = new AtomicBoolean();
    Cleaner.create().register(new Object(), () -> isCleaned.set(true));
    until(() -> {
      System.gc();
      return isCleaned.get();
    });
    assertLocked("dropped");
    assertThat(getLockProvider().lock(lockConfig("dropped"))).isEmpty();
  }

  @Test
  void anUnlockedTaskLeavesNothing() {
    WeakReference<Locks> dropped = lockedAndUnlocked();
    until(() -> {
      System.gc();
      return dropped.get() == null;
    });
  }

  private static WeakReference<Locks> lockedAndUnlocked() {
    try (Locks ofOneTest = server.locks(TestServer.Kind.LETTUCE)) {
      new RedisLockProvider(ofOneTest).lock(lockConfig("unlocked")).orElseThrow().unlock();
      return new WeakReference<>(ofOneTest);
    }
  }

  @Test
  void aKeyHasAPrefixAndAnEnvironment() {
    SimpleLock plain = new RedisLockProvider(locks).lock(lockConfig("a")).orElseThrow();
    SimpleLock named =
        new RedisLockProvider(locks, "test", "task").lock(lockConfig("a")).orElseThrow();
    assertThat(server.command("EXISTS", "job-lock:default:a", "task:test:a")).isEqualTo(2L);
    plain.unlock();
    named.unlock();
  }

  @Test
  void instancesOfShedLocksOwnProviderAreExcludedOnTheSameKey() {
    server.command("SET", "job-lock:test:old", "ADDED:now@host", "NX", "PX", "60000");
    assertThatExceptionOfType(RefusedException.class)
        .isThrownBy(() -> getLockProvider().lock(lockConfig("old")))
        .withMessageStartingWith("WRONGTYPE");
    SimpleLock lock = getLockProvider().lock(lockConfig("new")).orElseThrow();
    assertThat(server.command("SET", "job-lock:test:new", "ADDED:now@host", "NX", "PX", "60000"))
        .isNull();
    lock.unlock();
  }

  @Test
  void aSilentServerIsNoContentionAndHidesNoTask() {
    try (TestServer silent = new TestServer();
        Locks hasty = new Locks(silent.link(TestServer.Kind.LETTUCE))) {
      RedisLockProvider provider = new RedisLockProvider(hasty);
      until(() -> locked(provider, "first"));
      SimpleLock lock = provider.lock(lockConfig("a")).orElseThrow();
      Duration minute = Duration.ofSeconds(60);
      SimpleLock kept = provider.lock(lockConfig("b", minute, minute)).orElseThrow();
      silent.stop();
      assertThatExceptionOfType(UnavailableException.class)
          .isThrownBy(() -> provider.lock(lockConfig("c")));
      lock.unlock();
      kept.unlock();
      silent.goOn();
      until(() -> !silent.exists("job-lock:default:a"));
      until(() -> !silent.exists("job-lock:default:c"));
      assertThat(silent.exists("job-lock:default:b")).isTrue();
    }
  }

  private static boolean locked(RedisLockProvider provider, String name) {
    try {
      return provider.lock(lockConfig(name)).isPresent();
    } catch (UnavailableException slowStart) {
      return false;
    }
  }
}
