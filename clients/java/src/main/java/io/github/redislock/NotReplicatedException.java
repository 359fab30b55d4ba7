package io.github.redislock;

/** Thrown if too few replicas acknowledged the grant in time. The grant was released. */
public final class NotReplicatedException extends LockException {
  NotReplicatedException(String message) {
    super(message, null);
  }
}
