package io.github.redislock.spi;

import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The threads of the library. */
public final class Background {
  /** Executes work in threads that end soon after, and keep no program from its end. */
  public static final Executor THREADS = new ThreadPoolExecutor(
      0, Integer.MAX_VALUE, 3, TimeUnit.SECONDS, new SynchronousQueue<>(), Background::thread);

  /** Executes work at a time, in one thread. The work must be quick. */
  public static final ScheduledExecutorService TIMER = timer();

  private Background() {}

  private static ScheduledThreadPoolExecutor timer() {
    ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, Background::thread);
    timer.setRemoveOnCancelPolicy(true);
    timer.setKeepAliveTime(3, TimeUnit.SECONDS);
    timer.allowCoreThreadTimeOut(true);
    return timer;
  }

  private static Thread thread(Runnable work) {
    Thread thread = new Thread(work, "redis-lock");
    thread.setDaemon(true);
    return thread;
  }
}
