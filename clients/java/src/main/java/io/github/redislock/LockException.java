package io.github.redislock;

/** The base of this library's exceptions. No text contains a token. */
public sealed class LockException extends RuntimeException
    permits NotAcquiredException, WaitCancelledException, DeadlockException, LockLostException, UnavailableException,
        ModuleMissingException, NotReplicatedException, RefusedException {
  private static final long serialVersionUID = 1L;

  LockException(String message, Throwable cause) {
    super(message, cause);
  }
}
