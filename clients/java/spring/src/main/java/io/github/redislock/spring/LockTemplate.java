package io.github.redislock.spring;

import io.github.redislock.Hold;
import io.github.redislock.LockOptions;
import io.github.redislock.Locks;
import io.github.redislock.NotAcquiredException;
import io.micrometer.observation.Observation;
import io.micrometer.observation.ObservationRegistry;
import java.time.Duration;

/**
 * Does work under a lock, and observes the wait for the lock and the work. An observation shows in
 * metrics and, as a span, in traces:
 *
 * <table>
 * <caption>Observations</caption>
 * <tr><td>{@code redis.lock.acquire}</td><td>the wait, with its {@code outcome}: {@code granted},
 * {@code not_acquired} or {@code failed}</td></tr>
 * <tr><td>{@code redis.lock.hold}</td><td>the work</td></tr>
 * </table>
 *
 * <p>The key is of high cardinality, so it shows in traces and not in metrics.
 */
public class LockTemplate {
  private final Locks locks;
  private final ObservationRegistry observations;
  private final LockOptions options;

  /** Makes a template with the default options of {@code locks}. */
  public LockTemplate(Locks locks, ObservationRegistry observations) {
    this(locks, observations, locks.defaults());
  }

  /** Makes a template with options of its own. */
  public LockTemplate(Locks locks, ObservationRegistry observations, LockOptions options) {
    this.locks = locks;
    this.observations = observations;
    this.options = options;
  }

  /**
   * Waits for the lock, does the work and releases the lock.
   *
   * @throws NotAcquiredException if somebody else had the lock until the time was over
   * @throws io.github.redislock.LockLostException if the lock was lost during the work
   * @throws io.github.redislock.UnavailableException if no server replied in time
   */
  public <T, E extends Exception> T execute(String key, Duration limit, LockedWork<T, E> work)
      throws E, InterruptedException {
    try (Hold hold = observedAcquire(key, limit)) {
      return observation("redis.lock.hold", "hold lock", key).observeChecked(() -> work.run(hold));
    }
  }

  private Hold observedAcquire(String key, Duration limit) throws InterruptedException {
    Observation wait = observation("redis.lock.acquire", "acquire lock", key);
    wait.lowCardinalityKeyValue("outcome", "failed");
    return wait.observeChecked(() -> {
      try {
        Hold hold = locks.lock(options, key).acquire(limit);
        wait.lowCardinalityKeyValue("outcome", "granted");
        return hold;
      } catch (NotAcquiredException contended) {
        wait.lowCardinalityKeyValue("outcome", "not_acquired");
        throw contended;
      }
    });
  }

  private Observation observation(String name, String contextualName, String key) {
    return Observation.createNotStarted(name, observations)
        .contextualName(contextualName)
        .highCardinalityKeyValue("lock.key", key);
  }
}
