package io.github.redislock.spring;

import io.github.redislock.Hold;

/**
 * Work that is done while a lock is held.
 *
 * @param <T> the type of its result
 * @param <E> the type of its checked exception
 */
@FunctionalInterface
public interface LockedWork<T, E extends Exception> {
  /** Does the work. The hold has the fence, which a resource can check. */
  T run(Hold hold) throws E;
}
