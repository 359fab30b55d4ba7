package io.github.redislock.spring.shedlock;

import io.github.redislock.Hold;
import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import io.github.redislock.UnavailableException;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.apache.commons.logging.Log;
import org.apache.commons.logging.LogFactory;

/**
 * ShedLock's locks. {@code lockAtMostFor} is the lease, which isn't renewed: wrap the provider in a
 * {@code KeepAliveLockProvider} if a task may take longer. The keys are those of ShedLock's own
 * provider for Redis, so that a task runs once while some instances still use that.
 */
public class RedisLockProvider implements ExtensibleLockProvider {
  private static final String ENVIRONMENT = "default";
  private static final String KEY_PREFIX = "job-lock";
  private static final Log LOG = LogFactory.getLog(RedisLockProvider.class);
  /** The holds that weren't unlocked, of all providers. One that is collected would be released. */
  private static final Set<Hold> HELD = ConcurrentHashMap.newKeySet();

  private final Locks locks;
  private final String prefix;

  /** Makes a provider with the keys {@code job-lock:default:name}. */
  public RedisLockProvider(Locks locks) {
    this(locks, ENVIRONMENT);
  }

  /** Makes a provider with the keys {@code job-lock:environment:name}. */
  public RedisLockProvider(Locks locks, String environment) {
    this(locks, environment, KEY_PREFIX);
  }

  /** Makes a provider with the keys {@code keyPrefix:environment:name}. */
  public RedisLockProvider(Locks locks, String environment, String keyPrefix) {
    this.locks = locks;
    this.prefix = keyPrefix + ":" + environment + ":";
  }

  /**
   * Tries once to lock.
   *
   * @throws UnavailableException if no server replied in time
   */
  @Override
  public Optional<SimpleLock> lock(LockConfiguration configuration) {
    LockOptions options = locks.defaults()
        // No task asks whether it lost its lock, so it has the whole lease.
        .margin(Duration.ZERO)
        .lease(configuration.getLockAtMostFor())
        .withoutRenewal();
    return locks.lock(options, prefix + configuration.getName()).tryAcquire().map(hold -> {
      keep(hold);
      return new HeldLock(configuration, hold);
    });
  }

  /** Keeps a hold from being collected until its lease ends, because nobody has to unlock it. */
  private static void keep(Hold hold) {
    HELD.removeIf(Hold::isLost);
    HELD.add(hold);
  }

  private final class HeldLock extends AbstractSimpleLock {
    private final Hold hold;

    HeldLock(LockConfiguration configuration, Hold hold) {
      super(configuration);
      this.hold = hold;
    }

    /** Releases the lock. An outage doesn't hide how the task ended. */
    @Override
    protected void doUnlock() {
      HELD.remove(hold);
      Instant least = lockConfiguration.getLockAtLeastUntil();
      Duration rest = Duration.between(ClockProvider.now(), least);
      try {
        hold.releaseAfter(rest.isNegative() ? Duration.ZERO : rest);
      } catch (UnavailableException outage) {
        LOG.warn("the release of " + lockConfiguration.getName() + " got no reply", outage);
      }
    }

    @Override
    protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
      if (!hold.extend(extended.getLockAtMostFor())) return Optional.empty();
      return Optional.of(new HeldLock(extended, hold));
    }
  }
}
