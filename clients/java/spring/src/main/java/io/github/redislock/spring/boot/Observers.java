package io.github.redislock.spring.boot;

import io.github.redislock.Hold;
import io.github.redislock.LockObserver;
import io.github.redislock.RedisLock;
import io.github.redislock.UnavailableException;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import org.apache.commons.logging.Log;
import org.apache.commons.logging.LogFactory;

/** Tells several observers. The failure of one is logged, and the others hear nonetheless. */
record Observers(List<LockObserver> all) implements LockObserver {
  private static final Log LOG = LogFactory.getLog(Observers.class);

  @Override
  public void waited(RedisLock lock, Duration time, Outcome outcome) {
    tell(observer -> observer.waited(lock, time, outcome));
  }

  @Override
  public void granted(Hold hold) {
    tell(observer -> observer.granted(hold));
  }

  @Override
  public void lost(Hold hold) {
    tell(observer -> observer.lost(hold));
  }

  @Override
  public void unavailable(UnavailableException outage) {
    tell(observer -> observer.unavailable(outage));
  }

  private void tell(Consumer<LockObserver> told) {
    for (LockObserver observer : all) {
      try {
        told.accept(observer);
      } catch (RuntimeException error) {
        LOG.warn("an observer of locks failed", error);
      }
    }
  }
}
