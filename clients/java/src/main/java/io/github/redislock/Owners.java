package io.github.redislock;

import io.github.redislock.spi.Clock;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The grants of threads, each with its number of holds. A thread has its own map, which is
 * collected with the thread.
 */
final class Owners {
  private final ThreadLocal<Map<Name, Owned>> mine = ThreadLocal.withInitial(HashMap::new);

  /** What names a lock within a thread: its keys and its mode. */
  private record Name(List<String> keys, boolean isShared, long limit, long permits) {
    static Name of(RedisLock lock) {
      LockOptions options = lock.recipe.options();
      return new Name(lock.keys(), options.shared, options.limit, options.permits);
    }

    Name exclusive() {
      return new Name(keys, false, 0, 0);
    }

    boolean overlaps(Name other) {
      return !Collections.disjoint(keys, other.keys);
    }
  }

  /** A grant, and how often the thread holds it under a name. */
  static final class Owned {
    final RedisLock lock;
    final Hold hold;
    int holds = 1;

    Owned(RedisLock lock, Hold hold) {
      this.lock = lock;
      this.hold = hold;
    }

    boolean isHeld() {
      return hold.grant.isHeld();
    }
  }

  /** An acquire. */
  interface Acquiring {
    @Nullable Hold run() throws InterruptedException;
  }

  /**
   * Adds a hold of the current thread, or acquires the lock for it. A thread that writes may read,
   * too. After a loss the thread acquires the lock anew.
   */
  boolean own(RedisLock lock, long limit, Acquiring acquiring) throws InterruptedException {
    Map<Name, Owned> all = mine.get();
    Name name = Name.of(lock);
    Owned owned = all.get(name);
    if (owned != null && owned.isHeld()) {
      owned.holds++;
      return true;
    }
    Owned writes = name.isShared() ? all.get(name.exclusive()) : null;
    if (writes != null && writes.isHeld()) {
      all.put(name, new Owned(lock, writes.hold));
      return true;
    }
    if (limit == Clock.NEVER) checkGrantable(all, name);
    Hold hold = acquiring.run();
    if (hold == null) return false;
    hold.grant.owner = Thread.currentThread();
    all.put(name, new Owned(lock, hold));
    return true;
  }

  /** Throws if a wait would be for the thread itself. */
  private static void checkGrantable(Map<Name, Owned> all, Name name) {
    all.forEach((mine, owned) -> {
      boolean isBetweenReaders = name.isShared() && mine.isShared();
      if (isBetweenReaders || !mine.overlaps(name) || !owned.isHeld()) return;
      throw new DeadlockException(
          "this thread would wait for itself, because it holds " + owned.lock);
    });
  }

  /** Takes a hold of the current thread off. Returns false if the lock was lost. */
  boolean unlock(RedisLock lock) {
    Map<Name, Owned> all = mine.get();
    Name name = Name.of(lock);
    Owned owned = owned(lock);
    if (--owned.holds > 0) return !owned.hold.isLost();
    all.remove(name);
    Owned other = null;
    for (Owned each : all.values()) {
      if (each.hold == owned.hold) other = each;
    }
    if (other == null) return owned.hold.release();
    // The thread that wrote reads on: no other writer comes between.
    return name.isShared() ? !owned.hold.isLost() : owned.hold.grant.share(other.lock.recipe);
  }

  /** Returns what the current thread owns or has lost, or null. */
  @Nullable Owned find(RedisLock lock) {
    return mine.get().get(Name.of(lock));
  }

  /** Returns what the current thread owns or has lost. */
  Owned owned(RedisLock lock) {
    Owned owned = find(lock);
    if (owned != null) return owned;
    throw new IllegalMonitorStateException("this thread doesn't hold the lock " + lock.name());
  }
}
