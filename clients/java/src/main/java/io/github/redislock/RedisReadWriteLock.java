package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/**
 * Readers share the key, a writer has it alone. Each thread that reads is a holder of its own.
 *
 * <p>The thread that writes may read too, and reads on if it ends the writing first: no other writer comes
 * between. A reader can't become a writer: a thread that reads and waits for the write lock without a limit
 * gets {@link DeadlockException} at once.
 */
public final class RedisReadWriteLock implements ReadWriteLock {
  private final Locks locks;
  private final LockOptions readOptions;
  private final String key;
  private final Writer writer;
  private final Readers reader = new Readers();

  RedisReadWriteLock(Locks locks, LockOptions options, String key) {
    this.locks = locks;
    this.key = Objects.requireNonNull(key, "key");
    readOptions = options.shared();
    writer = new Writer(options);
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
    return "RedisReadWriteLock[" + key + "]";
  }

  /** The write lock. It passes its grant on to the thread's read lock, if the thread reads too. */
  final class Writer extends RedisLock {
    private Writer(LockOptions options) {
      super(RedisReadWriteLock.this.locks, options, List.of(key.getBytes(UTF_8)));
    }

    @Override
    CompletableFuture<Boolean> release(Grant owned) {
      Reads within = owned.holds() == 1 ? reader.within.get(owned.owner()) : null;
      if (within == null || within.grant != owned) return super.release(owned);
      RedisLock heir = reader.mine();
      return owned.convert(heir, within.holds).thenApply(shared -> {
        shared.ifPresent(passed -> {
          reader.within.remove(passed.owner());
          heir.adopt(passed);
        });
        return shared.isPresent();
      });
    }
  }

  /** The holds of the read lock that a thread has within its grant of the write lock. */
  private record Reads(Grant grant, int holds) {}

  /** A lock for each thread that reads. */
  private final class Readers implements Lock {
    private final Map<Thread, RedisLock> ofThreads = new ConcurrentHashMap<>();
    private final Map<Thread, Reads> within = new ConcurrentHashMap<>();

    boolean isHeldByCurrentThread() {
      RedisLock mine = ofThreads.get(Thread.currentThread());
      return mine != null && mine.isHeldByCurrentThread();
    }

    @Override
    public void lock() {
      acquired(mine -> {
        mine.lock();
        return true;
      });
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
      if (Thread.interrupted()) throw new InterruptedException();
      acquired(mine -> {
        mine.lockInterruptibly();
        return true;
      });
    }

    @Override
    public boolean tryLock() {
      return acquired(RedisLock::tryLock);
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
      if (Thread.interrupted()) throw new InterruptedException();
      return acquired(mine -> mine.tryLock(time, unit));
    }

    @Override
    public void unlock() {
      Reads reads = within.get(Thread.currentThread());
      if (reads != null) {
        unlockWithin(reads);
        return;
      }
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

    private interface Acquire<X extends Exception> {
      boolean by(RedisLock mine) throws X;
    }

    private <X extends Exception> boolean acquired(Acquire<X> acquire) throws X {
      Grant written = writer.owned();
      if (written != null && written.isHeld()) {
        within.compute(Thread.currentThread(), (thread, reads) ->
            new Reads(written, reads != null && reads.grant == written ? reads.holds + 1 : 1));
        return true;
      }
      // Holds within a grant that was lost end here.
      within.remove(Thread.currentThread());
      RedisLock mine = mine();
      try {
        return acquire.by(mine);
      } finally {
        forgetUnlessHeld(mine);
      }
    }

    private void unlockWithin(Reads reads) {
      Reads rest = reads.holds == 1 ? null : new Reads(reads.grant, reads.holds - 1);
      within.computeIfPresent(Thread.currentThread(), (thread, before) -> rest);
      if (!reads.grant.isHeld()) throw reads.grant.lostError();
    }

    private RedisLock mine() {
      // A thread that ended without unlock can't come back.
      ofThreads.keySet().removeIf(thread -> !thread.isAlive());
      within.keySet().removeIf(thread -> !thread.isAlive());
      return ofThreads.computeIfAbsent(Thread.currentThread(), thread -> locks.lock(readOptions, key));
    }

    /** Forgets the lock of this thread, except a lost one, of which unlock must still tell. */
    private void forgetUnlessHeld(RedisLock mine) {
      if (!mine.isHeldByCurrentThread() && !mine.isLost()) ofThreads.remove(Thread.currentThread(), mine);
    }
  }
}
