package io.github.redislock;

import org.jspecify.annotations.Nullable;

/** The base of this library's exceptions, except {@link LockLostException}. No text has a token. */
public abstract sealed class LockException extends RuntimeException
    permits NotAcquiredException, WaitCancelledException, DeadlockException, UnavailableException,
        ModuleMissingException, NotReplicatedException, RefusedException {
  LockException(String message, @Nullable Throwable cause) {
    super(message, cause);
  }
}
