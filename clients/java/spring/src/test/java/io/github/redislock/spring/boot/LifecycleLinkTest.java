package io.github.redislock.spring.boot;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.spi.Link;
import java.lang.reflect.Proxy;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class LifecycleLinkTest {
  /** A client that is closed slowly holds up nobody who only asks. */
  @Test
  void aSlowStopHoldsUpNobody() throws Exception {
    CountDownLatch isClosing = new CountDownLatch(1);
    CountDownLatch mayClose = new CountDownLatch(1);
    LifecycleLink lifecycle = new LifecycleLink(() -> new LifecycleLink.Opened(link(), () -> {
      isClosing.countDown();
      wait(mayClose);
    }));
    lifecycle.start();
    CompletableFuture<Void> stopped = CompletableFuture.runAsync(lifecycle::stop);
    wait(isClosing);
    try {
      assertThat(CompletableFuture.supplyAsync(lifecycle::isRunning).get(10, TimeUnit.SECONDS)).isFalse();
    } finally {
      mayClose.countDown();
    }
    stopped.get(10, TimeUnit.SECONDS);
  }

  private static Link link() {
    ClassLoader loader = Link.class.getClassLoader();
    return (Link) Proxy.newProxyInstance(loader, new Class<?>[] {Link.class}, (proxy, method, arguments) -> null);
  }

  private static void wait(CountDownLatch latch) {
    try {
      assertThat(latch.await(30, TimeUnit.SECONDS)).isTrue();
    } catch (InterruptedException interrupt) {
      throw new AssertionError(interrupt);
    }
  }
}
