package io.github.redislock.spring.boot;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatExceptionOfType;
import static org.assertj.core.api.Assertions.assertThatIllegalStateException;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.Fault;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;

class LifecycleLinkTest {
  /** A link that is closed slowly holds up nobody who only asks. */
  @Test
  void aSlowStopHoldsUpNobody() throws Exception {
    CountDownLatch isClosing = new CountDownLatch(1);
    CountDownLatch mayClose = new CountDownLatch(1);
    LifecycleLink lifecycle = new LifecycleLink(() -> link(() -> "reply", () -> {
      isClosing.countDown();
      wait(mayClose);
    }));
    lifecycle.start();
    CompletableFuture<Void> stopped = CompletableFuture.runAsync(lifecycle::stop);
    wait(isClosing);
    try {
      CompletableFuture<Boolean> asked = CompletableFuture.supplyAsync(lifecycle::isRunning);
      assertThat(asked.get(10, TimeUnit.SECONDS)).isFalse();
    } finally {
      mayClose.countDown();
    }
    stopped.get(10, TimeUnit.SECONDS);
  }

  /** A context that is started again has a client again, so a wait goes on. */
  @Test
  void aStoppedApplicationIsAnOutage() {
    LifecycleLink lifecycle = new LifecycleLink(() -> link(() -> "reply", () -> {}));
    assertThat(send(lifecycle)).isEqualTo("reply");
    lifecycle.stop();
    assertThatExceptionOfType(Fault.class).isThrownBy(() -> send(lifecycle));
    lifecycle.start();
    assertThat(send(lifecycle)).isEqualTo("reply");
  }

  @Test
  void onlyTheStopMakesAnOutageOfAFailure() {
    LifecycleLink[] lifecycle = {null};
    boolean[] isStopped = {false};
    lifecycle[0] = new LifecycleLink(() -> link(() -> {
      if (isStopped[0]) lifecycle[0].stop();
      throw new IllegalStateException("closed");
    }, () -> {}));
    assertThatIllegalStateException().isThrownBy(() -> send(lifecycle[0]));
    isStopped[0] = true;
    assertThatExceptionOfType(Fault.class).isThrownBy(() -> send(lifecycle[0]));
  }

  private static Object send(Link link) {
    Command command = Command.of("RELEASE", List.of("k".getBytes()), List.of("token"), 0);
    return Call.uninterruptibly(call -> link.send(command, call, Clock.NEVER));
  }

  private static Link link(Supplier<Object> reply, Runnable close) {
    return new Link() {
      @Override
      public Object send(Command command, Call call, long until) {
        return reply.get();
      }

      @Override
      public void close() {
        close.run();
      }
    };
  }

  private static void wait(CountDownLatch latch) {
    try {
      assertThat(latch.await(30, TimeUnit.SECONDS)).isTrue();
    } catch (InterruptedException interrupt) {
      throw new AssertionError(interrupt);
    }
  }
}
