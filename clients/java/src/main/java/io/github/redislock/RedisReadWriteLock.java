package io.github.redislock;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * Readers share the key, a writer has it alone. Each thread that reads is a holder of its own. A reader
 * can't become a writer, nor the other way: a thread that has one of the two locks and waits for the other
 * without a limit gets {@link DeadlockException} at once.
 */
public final class RedisReadWriteLock implements ReadWriteLock {
  private final RedisLock writer;
  private final Readers reader;

  RedisReadWriteLock(Locks locks, LockOptions options, String key) {
    writer = locks.lock(options, key);
    reader = new Readers(locks, options.shared(), key, writer);
    writer.neverGrantedIf(reader::isHeldByCurrentThread);
  }

  @Override
  public Lock readLock() {
    return reader;
  }

  @Override
  public RedisLock writeLock() {
    return writer;
  }

  @Override
  public String toString() {
    return "RedisReadWriteLock[" + writer.name() + "]";
  }

  /** A lock for each thread that reads. */
  private record Readers(
      Locks locks, LockOptions options, String key, RedisLock writer, Map<Thread, RedisLock> ofThreads)
      implements Lock {
    Readers(Locks locks, LockOptions options, String key, RedisLock writer) {
      this(locks, options, key, writer, new ConcurrentHashMap<>());
    }

    boolean isHeldByCurrentThread() {
      RedisLock mine = ofThreads.get(Thread.currentThread());
      return mine != null && mine.isHeldByCurrentThread();
    }

    @Override
    public void lock() {
      RedisLock mine = mine();
      try {
        mine.lock();
      } finally {
        forgetUnlessHeld(mine);
      }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
      RedisLock mine = mine();
      try {
        mine.lockInterruptibly();
      } finally {
        forgetUnlessHeld(mine);
      }
    }

    @Override
    public boolean tryLock() {
      RedisLock mine = mine();
      try {
        return mine.tryLock();
      } finally {
        forgetUnlessHeld(mine);
      }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
      RedisLock mine = mine();
      try {
        return mine.tryLock(time, unit);
      } finally {
        forgetUnlessHeld(mine);
      }
    }

    @Override
    public void unlock() {
      RedisLock mine = mine();
      try {
        mine.unlock();
      } finally {
        forgetUnlessHeld(mine);
      }
    }

    @Override
    public Condition newCondition() {
      throw new UnsupportedOperationException("a lock of several processes has no conditions");
    }

    @Override
    public String toString() {
      return "RedisReadWriteLock[" + key + "].readLock()";
    }

    private RedisLock mine() {
      // A thread that ended without unlock can't come back.
      ofThreads.keySet().removeIf(thread -> !thread.isAlive());
      return ofThreads.computeIfAbsent(Thread.currentThread(), thread -> {
        RedisLock made = locks.lock(options, key);
        made.neverGrantedIf(writer::isHeldByCurrentThread);
        return made;
      });
    }

    /** Forgets the lock of this thread, except a lost one, of which unlock must still tell. */
    private void forgetUnlessHeld(RedisLock mine) {
      if (!mine.isHeldByCurrentThread() && !mine.isLost()) ofThreads.remove(Thread.currentThread(), mine);
    }
  }
}
