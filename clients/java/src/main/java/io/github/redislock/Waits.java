package io.github.redislock;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** Threads that wait for a future. */
final class Waits {
  private Waits() {}

  /** Returns the result. Interrupts are kept for later. */
  static <T> T uninterruptibly(CompletableFuture<T> future) {
    boolean interrupted = false;
    try {
      while (true) {
        try {
          return interruptibly(future);
        } catch (InterruptedException later) {
          interrupted = true;
        }
      }
    } finally {
      if (interrupted) Thread.currentThread().interrupt();
    }
  }

  /** Returns the result, or throws its exception with the stack of this thread. */
  static <T> T interruptibly(CompletableFuture<T> future) throws InterruptedException {
    try {
      return future.get();
    } catch (ExecutionException failed) {
      Throwable cause = failed.getCause();
      cause.addSuppressed(new Throwable("the call that failed"));
      if (cause instanceof RuntimeException unchecked) throw unchecked;
      throw new IllegalStateException(cause);
    }
  }
}
