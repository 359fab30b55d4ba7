package io.github.redislock;

import io.github.redislock.spi.Background;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.function.Consumer;

/** Calls that wait in a thread of the library: a virtual one, where Java has them. */
final class Waits<T> extends FutureTask<T> {
  private static final Executor THREADS = threads();

  private final CompletableFuture<T> result = new CompletableFuture<>();
  private final Consumer<T> unwanted;

  private Waits(Callable<T> call, Consumer<T> unwanted) {
    super(call);
    this.unwanted = unwanted;
  }

  /**
   * Executes a call in the background. If the future ends first, the call is interrupted, and its
   * result goes to {@code unwanted}.
   */
  static <T> CompletableFuture<T> inBackground(Callable<T> call, Consumer<T> unwanted) {
    Waits<T> waits = new Waits<>(call, unwanted);
    THREADS.execute(waits);
    waits.result.whenComplete((value, error) -> waits.cancel(true));
    return waits.result;
  }

  /** Passes the result on after the task has ended, so that no interrupt meets what follows. */
  @Override
  protected void set(T value) {
    super.set(value);
    if (result.complete(value)) return;
    try {
      unwanted.accept(value);
    } catch (LockLostException lost) {
      // Nobody waits for the release any more.
    }
  }

  @Override
  protected void setException(Throwable error) {
    super.setException(error);
    result.completeExceptionally(error);
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
