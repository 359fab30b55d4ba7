package io.github.redislock.spring.boot;

import io.github.redislock.Observer;
import io.github.redislock.RedisLock;
import io.github.redislock.UnavailableException;
import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import org.apache.commons.logging.Log;
import org.apache.commons.logging.LogFactory;

/** Tells several observers. The failure of one is logged, and the others hear nonetheless. */
record Observers(List<Observer> all) implements Observer {
  private static final Log LOG = LogFactory.getLog(Observers.class);

  @Override
  public void waited(RedisLock lock, Duration waited, Outcome outcome) {
    tell(observer -> observer.waited(lock, waited, outcome));
  }

  @Override
  public void granted(RedisLock lock, long fence) {
    tell(observer -> observer.granted(lock, fence));
  }

  @Override
  public void lost(RedisLock lock, long fence) {
    tell(observer -> observer.lost(lock, fence));
  }

  @Override
  public void unavailable(UnavailableException outage) {
    tell(observer -> observer.unavailable(outage));
  }

  private void tell(Consumer<Observer> told) {
    for (Observer observer : all) {
      try {
        told.accept(observer);
      } catch (RuntimeException error) {
        LOG.warn("an observer of locks failed", error);
      }
    }
  }
}
