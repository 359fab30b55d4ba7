package io.github.redislock.spring.boot;

import static io.github.redislock.TestServer.until;
import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.Hold;
import io.github.redislock.LockException;
import io.github.redislock.Locks;
import io.github.redislock.TestServer;
import io.github.redislock.UnavailableException;
import io.github.redislock.spring.LockTemplate;
import io.github.redislock.spring.shedlock.RedisLockProvider;
import io.micrometer.core.instrument.MeterRegistry;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockAssert;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.test.system.CapturedOutput;
import org.springframework.boot.test.system.OutputCaptureExtension;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;

/** Whole applications, with Lettuce and with Jedis, that have nothing but properties. */
@ExtendWith(OutputCaptureExtension.class)
class RedisLockAutoConfigurationTest {
  private static final Duration LONG = Duration.ofSeconds(20);

  private final List<AutoCloseable> opened = new ArrayList<>();

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Application {}

  @AfterEach
  void closeAll() throws Exception {
    for (int last = opened.size() - 1; last >= 0; last--) opened.get(last).close();
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void locksUseTheServerOfTheApplication(String client) throws Exception {
    TestServer server = opened(new TestServer());
    server.command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all");
    ConfigurableApplicationContext application = started(client,
        "spring.data.redis.url=redis://shop:secret@127.0.0.1:" + server.port() + "/3",
        "spring.data.redis.client-name=orders");
    try (Hold hold = locksOf(application).lock("k").acquire(LONG)) {
      assertThat(hold.fence()).isPositive();
      assertThat(server.connections()).anyMatch(line ->
          line.contains("name=orders") && line.contains("user=shop") && line.contains("db=3")
              && line.contains("cmd=lock."));
    }
    assertThat(application.getBean(LockRegistry.class).obtain("a"))
        .hasToString("RegistryLock[locks:a]");
    assertThat(application.getBean(LockProvider.class)).isInstanceOf(RedisLockProvider.class);
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void locksUseTheCluster(String client) throws Exception {
    TestServer node = opened(new TestServer("cluster 1"));
    ConfigurableApplicationContext application =
        started(client, "spring.data.redis.cluster.nodes=127.0.0.1:" + node.port());
    assertThat(waitedFence(application, node)).isPositive();
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void locksUseThePrimaryThatSentinelNames(String client) throws Exception {
    TestServer server = opened(new TestServer());
    TestServer sentinel = opened(new TestServer("sentinel primary " + server.port()));
    ConfigurableApplicationContext application = started(client,
        "spring.data.redis.sentinel.master=primary",
        "spring.data.redis.sentinel.nodes=127.0.0.1:" + sentinel.port());
    assertThat(waitedFence(application, server)).isPositive();
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void locksUseTheSslBundle(String client) throws Exception {
    TestServer server = opened(new TestServer("tls"));
    ConfigurableApplicationContext application = started(client,
        "spring.data.redis.host=localhost",
        "spring.data.redis.port=" + server.word(1),
        "spring.data.redis.ssl.bundle=redis",
        "spring.ssl.bundle.pem.redis.truststore.certificate=file:" + server.word(2));
    assertThat(waitedFence(application, server)).isPositive();
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aClosedApplicationLeavesNothing(String client, CapturedOutput output) throws Exception {
    TestServer server = opened(new TestServer());
    ConfigurableApplicationContext application = started(client,
        "spring.data.redis.port=" + server.port(), "logging.level.root=warn");
    application.getBean(LockTemplate.class).execute("k", LONG, hold -> hold.fence());
    Hold held = locksOf(application).lock("held").acquire(LONG);
    application.close();
    until(() -> server.connections().isEmpty());
    until(() -> Thread.getAllStackTraces().keySet().stream()
        .noneMatch(thread -> thread.getName().startsWith("redis-lock")));
    assertThat(output.getAll()).doesNotContain("WARN");
    assertThat(held.isLost()).isFalse();
    assertThat(server.exists("held")).isTrue();
  }

  @ParameterizedTest
  @ValueSource(strings = {"lettuce", "jedis"})
  void aStoppedApplicationLocksAgainOnceItIsStarted(String client) throws Exception {
    TestServer server = opened(new TestServer());
    ConfigurableApplicationContext application =
        started(client, "spring.data.redis.port=" + server.port());
    assertThat(waitedFence(application, server)).isPositive();
    application.stop();
    until(() -> server.connections().isEmpty());
    application.start();
    assertThat(waitedFence(application, server)).isPositive();
  }

  @Test
  void aBeanMayLockBeforeTheApplicationStarts() throws Exception {
    TestServer server = opened(new TestServer());
    ConfigurableApplicationContext application =
        started("lettuce", EarlyLocker.class, "spring.data.redis.port=" + server.port());
    assertThat(application.getBean(EarlyLocker.class).hold.release()).isTrue();
    application.close();
    until(() -> server.connections().isEmpty());
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class EarlyLocker {
    private final Hold hold;

    EarlyLocker(Locks locks) throws InterruptedException {
      hold = locks.lock("k").acquire(LONG);
    }
  }

  @Test
  void aScheduledTaskRunsUnderItsLock() throws Exception {
    TestServer server = opened(new TestServer());
    ConfigurableApplicationContext application =
        started("lettuce", Scheduler.class, "spring.data.redis.port=" + server.port());
    application.getBean(Task.class).done().get(20, TimeUnit.SECONDS);
    assertThat(server.exists("job-lock:default:task")).isTrue();
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @EnableScheduling
  @EnableSchedulerLock(defaultLockAtMostFor = "60s")
  static class Scheduler {
    @Bean
    Task task() {
      return new Task();
    }
  }

  public static class Task {
    private final CompletableFuture<Void> ran = new CompletableFuture<>();

    // The bean is a proxy.
    public CompletableFuture<Void> done() {
      return ran;
    }

    @Scheduled(fixedDelay = 60_000)
    @SchedulerLock(name = "task", lockAtLeastFor = "50s")
    public void run() {
      LockAssert.assertLocked();
      ran.complete(null);
    }
  }

  @Test
  void locksAreCounted() throws Exception {
    TestServer server = opened(new TestServer());
    ConfigurableApplicationContext application =
        started("lettuce", "spring.data.redis.port=" + server.port(), "redis-lock.lease=3s",
            "redis-lock.command-timeout=2s");
    MeterRegistry meters = application.getBean(MeterRegistry.class);
    until(() -> isServed(locksOf(application)));
    double granted = meters.get("redis.lock.grants").counter().count();
    Hold first = locksOf(application).lock("k").acquire(LONG);
    // On a busy machine the end of a wait may find no reply.
    until(() -> isRefused(locksOf(application))
        && meters.get("redis.lock.waits").tag("outcome", "not_acquired").timer().count() > 0);
    server.command("DEL", "k");
    until(first::isLost);
    until(() -> meters.get("redis.lock.losses").counter().count() > 0);
    application.getBean(LockTemplate.class).execute("k", LONG, hold -> hold.fence());
    until(() -> meters.get("redis.lock.grants").counter().count() >= granted + 2);
    assertThat(meters.get("redis.lock.acquire").tag("outcome", "granted").timer().count())
        .isEqualTo(1);
    assertThat(meters.get("redis.lock.hold").timer().count()).isEqualTo(1);
    double outages = meters.get("redis.lock.unavailable").counter().count();
    server.stop();
    Thread waiting = new Thread(() -> locksOf(application).lock("k").lock());
    waiting.setDaemon(true);
    waiting.start();
    until(() -> meters.get("redis.lock.unavailable").counter().count() > outages);
  }

  /** Returns the fence of a grant that was waited for. */
  private static long waitedFence(ConfigurableApplicationContext application, TestServer server)
      throws Exception {
    Locks locks = locksOf(application);
    try (Hold first = locks.lock("k").acquire(LONG)) {
      var second = locks.lock("k").acquireAsync();
      until(() -> server.waiters("k") == 1);
      first.release();
      try (Hold served = second.get(20, TimeUnit.SECONDS)) {
        return served.fence();
      }
    }
  }

  private static boolean isRefused(Locks locks) {
    try {
      locks.lock("k").acquire(Duration.ofMillis(300)).release();
      return false;
    } catch (LockException refused) {
      return true;
    } catch (InterruptedException interrupt) {
      throw new AssertionError(interrupt);
    }
  }

  private static boolean isServed(Locks locks) {
    try {
      locks.lock("first").tryAcquire().ifPresent(Hold::release);
      return true;
    } catch (UnavailableException slowStart) {
      return false;
    }
  }

  private static Locks locksOf(ConfigurableApplicationContext application) {
    return application.getBean(Locks.class);
  }

  private ConfigurableApplicationContext started(String client, String... properties) {
    return started(client, Application.class, properties);
  }

  private ConfigurableApplicationContext started(
      String client, Class<?> application, String... properties) {
    List<String> all = new ArrayList<>(List.of("spring.data.redis.client-type=" + client,
        // A busy machine may take its time.
        "redis-lock.command-timeout=15s", "spring.main.banner-mode=off",
        "logging.level.root=error"));
    all.addAll(List.of(properties));
    return opened(new SpringApplicationBuilder(application)
        .web(WebApplicationType.NONE)
        .registerShutdownHook(false)
        .properties(all.toArray(String[]::new))
        .run());
  }

  private <T extends AutoCloseable> T opened(T resource) {
    opened.add(resource);
    return resource;
  }
}
