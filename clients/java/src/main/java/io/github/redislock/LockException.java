package io.github.redislock;

import org.jspecify.annotations.Nullable;

/** The base of this library's exceptions, except {@link LockLostException}. No text has a token. */
public abstract sealed class LockException extends RuntimeException
    permits NotAcquiredException, WaitCancelledException, DeadlockException, UnavailableException,
        ModuleMissingException, NotReplicatedException, RefusedException {
  private static final long serialVersionUID = 1L;

  LockException(String message, @Nullable Throwable cause) {
    super(message, cause);
  }
}
