package io.github.redislock;

import io.github.redislock.spi.Background;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** A call that waits in a thread of the library: a virtual one, where Java has them. */
final class Waits<T> implements Runnable {
  private static final Executor THREADS = threads();

  private final CompletableFuture<T> result = new CompletableFuture<>();
  private final Callable<T> call;
  private final Consumer<T> unwanted;
  /** The thread while the call runs. */
  private @Nullable Thread thread;

  private Waits(Callable<T> call, Consumer<T> unwanted) {
    this.call = call;
    this.unwanted = unwanted;
  }

  /**
   * Executes a call in the background. If the future ends first, the call is interrupted, and its
   * result goes to {@code unwanted}.
   */
  static <T> CompletableFuture<T> inBackground(Callable<T> call, Consumer<T> unwanted) {
    Waits<T> waits = new Waits<>(call, unwanted);
    THREADS.execute(waits);
    waits.result.whenComplete((value, error) -> {
      if (error != null) waits.interrupt();
    });
    return waits.result;
  }

  @Override
  public void run() {
    if (!begins()) return;
    T value;
    try {
      value = call.call();
    } catch (Throwable error) {
      ended();
      result.completeExceptionally(error);
      return;
    }
    ended();
    if (result.complete(value)) return;
    try {
      unwanted.accept(value);
    } catch (RuntimeException error) {
      // Nobody waits for the release any more, which goes on.
    }
  }

  private synchronized boolean begins() {
    if (result.isDone()) return false;
    thread = Thread.currentThread();
    return true;
  }

  private synchronized void ended() {
    thread = null;
    Thread.interrupted();
  }

  private synchronized void interrupt() {
    if (thread != null) thread.interrupt();
  }

  private static Executor threads() {
    try {
      // Java 21 has the method.
      var method = Executors.class.getMethod("newVirtualThreadPerTaskExecutor");
      return (Executor) method.invoke(null);
    } catch (ReflectiveOperationException older) {
      return Background::run;
    }
  }
}
