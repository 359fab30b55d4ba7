package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Waiting threads that hold no carrier: {@code test} gives virtual threads one carrier, and a single
 * pinned one would stop all of them. A JVM before 21 has none, so platform threads do the same there.
 */
class VirtualThreadsTest {
  private static final int THREADS = 100;

  @ParameterizedTest
  @EnumSource
  void aWaitHoldsNoCarrier(TestServer.Kind kind) throws Exception {
    try (TestServer server = new TestServer(); Locks locks = server.locks(kind)) {
      ExecutorService threads = threads();
      AtomicInteger inside = new AtomicInteger();
      List<Future<?>> all = new ArrayList<>();
      RedisLock first = locks.lock("k");
      first.lock();
      for (int thread = 0; thread < THREADS; thread++) {
        all.add(threads.submit(() -> {
          RedisLock lock = locks.lock("k");
          lock.lockInterruptibly();
          assertEquals(1, inside.incrementAndGet());
          Thread.sleep(1);
          inside.decrementAndGet();
          lock.unlock();
          return null;
        }));
      }
      // At most four of a process ask the server.
      TestServer.until(() -> server.waiters("k") == 4);
      first.unlock();
      for (Future<?> each : all) each.get(30, TimeUnit.SECONDS);
      assertTrue(threads.shutdownNow().isEmpty());
    }
  }

  private static ExecutorService threads() throws ReflectiveOperationException {
    if (Runtime.version().feature() < 21) return Executors.newCachedThreadPool();
    return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
  }
}
