package io.github.redislock.spi;

import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The threads of the library. A thread ends some seconds after its last work. */
public final class Background {
  private static final Executor THREADS = new ThreadPoolExecutor(
      0, Integer.MAX_VALUE, 3, TimeUnit.SECONDS, new SynchronousQueue<>(), Background::thread);

  private Background() {}

  /** Runs work in a thread of the library. */
  public static void run(Runnable work) {
    THREADS.execute(work);
  }

  /** Returns a thread that doesn't keep the program from its end. */
  public static Thread thread(Runnable work) {
    Thread thread = new Thread(work, "redis-lock");
    thread.setDaemon(true);
    return thread;
  }
}
