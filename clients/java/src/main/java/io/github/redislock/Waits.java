package io.github.redislock;

import io.github.redislock.spi.Background;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.function.Consumer;

/** Calls that wait in a thread of the library: a virtual one, where Java has them. */
final class Waits {
  private static final Executor THREADS = threads();

  private Waits() {}

  /**
   * Executes a call in the background. If the future ends first, the call is interrupted, and its
   * result goes to {@code unwanted}.
   */
  static <T> CompletableFuture<T> inBackground(Callable<T> call, Consumer<T> unwanted) {
    CompletableFuture<T> result = new CompletableFuture<>();
    // The result is passed on after the task has ended, so no interrupt meets what follows.
    FutureTask<T> task = new FutureTask<>(call) {
      @Override
      protected void set(T value) {
        super.set(value);
        if (!result.complete(value)) unwanted.accept(value);
      }

      @Override
      protected void setException(Throwable error) {
        super.setException(error);
        result.completeExceptionally(error);
      }
    };
    THREADS.execute(task);
    result.whenComplete((value, error) -> task.cancel(true));
    return result;
  }

  private static Executor threads() {
    try {
      // Java 21 has the method.
      var method = Executors.class.getMethod("newVirtualThreadPerTaskExecutor");
      return (Executor) method.invoke(null);
    } catch (ReflectiveOperationException older) {
      return Background.THREADS;
    }
  }
}
