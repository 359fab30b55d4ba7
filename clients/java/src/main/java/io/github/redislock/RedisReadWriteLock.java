package io.github.redislock;

import java.util.concurrent.locks.ReadWriteLock;

/**
 * Readers share the key, a writer has it alone. Each thread that reads is a holder of its own.
 *
 * <p>The thread that writes may read too, and reads on if it ends the writing first: no other
 * writer comes between. A reader can't become a writer: a thread that reads and waits for the write
 * lock without a limit gets {@link DeadlockException} at once.
 */
public final class RedisReadWriteLock implements ReadWriteLock {
  private final RedisLock reader;
  private final RedisLock writer;

  RedisReadWriteLock(Locks locks, LockOptions options, String key) {
    LockOptions.check("options", !options.shared, "without a mode");
    reader = locks.lock(options.shared(), key);
    writer = locks.lock(options, key);
  }

  @Override
  public RedisLock readLock() {
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
}
