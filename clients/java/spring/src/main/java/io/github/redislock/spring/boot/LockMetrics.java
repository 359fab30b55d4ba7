package io.github.redislock.spring.boot;

import io.github.redislock.Hold;
import io.github.redislock.LockObserver;
import io.github.redislock.RedisLock;
import io.github.redislock.UnavailableException;
import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.Timer;
import java.time.Duration;
import java.util.EnumMap;
import java.util.Locale;
import java.util.Map;

/** Counts grants, losses and outages, and times waits. No meter has the key: there may be many. */
final class LockMetrics implements LockObserver {
  private final Map<Outcome, Timer> waits = new EnumMap<>(Outcome.class);
  private final Counter grants;
  private final Counter losses;
  private final Counter outages;

  LockMetrics(MeterRegistry registry) {
    for (Outcome outcome : Outcome.values()) {
      waits.put(outcome, Timer.builder("redis.lock.waits")
          .description("Acquires that had to wait")
          .tag("outcome", outcome.name().toLowerCase(Locale.ROOT))
          .register(registry));
    }
    grants = counter("redis.lock.grants", "Grants", registry);
    losses = counter("redis.lock.losses", "Locks that were lost before their release", registry);
    outages = counter("redis.lock.unavailable", "Outages that no caller was told of", registry);
  }

  private static Counter counter(String name, String description, MeterRegistry registry) {
    return Counter.builder(name).description(description).register(registry);
  }

  @Override
  public void waited(RedisLock lock, Duration time, Outcome outcome) {
    waits.get(outcome).record(time);
  }

  @Override
  public void granted(Hold hold) {
    grants.increment();
  }

  @Override
  public void lost(Hold hold) {
    losses.increment();
  }

  @Override
  public void unavailable(UnavailableException outage) {
    outages.increment();
  }
}
