package io.github.redislock.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.Locks;
import io.github.redislock.Pages;
import io.github.redislock.TestServer;
import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spring.boot.RedisLockAutoConfiguration;
import io.github.redislock.spring.boot.RedisLockIntegrationAutoConfiguration;
import io.github.redislock.spring.boot.RedisLockProperties;
import io.lettuce.core.RedisClient;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.json.JsonParserFactory;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.util.ClassUtils;

/** The pages of the starter: examples compile, calls run, and properties exist. */
class PageTest {
  private static final Path PAGE = Path.of("README.md");
  private static final Path MIGRATION = Path.of("../../../docs/migrate/spring.md");
  private static final String IMPORTS = """
      import io.github.redislock.*;
      import io.github.redislock.lettuce.LettuceLink;
      import io.github.redislock.spi.Link;
      import io.lettuce.core.RedisClient;
      import java.time.Duration;
      import java.util.concurrent.CompletableFuture;
      import java.util.concurrent.locks.Lock;
      import static java.util.concurrent.TimeUnit.SECONDS;
      import org.springframework.context.annotation.Bean;
      import org.springframework.integration.support.locks.*;
      import org.springframework.scheduling.TaskScheduler;
      import org.springframework.scheduling.concurrent.SimpleAsyncTaskScheduler;
      import org.springframework.stereotype.Service;
      """;

  private static final boolean IS_SEVEN =
      ClassUtils.isPresent("org.springframework.integration.support.locks.DistributedLock", null);
  private static final String REGISTRY =
      IS_SEVEN ? "LockRegistry<DistributedLock>" : "LockRegistry";
  private static final String OWN_TYPE = IS_SEVEN ? "DistributedLockRegistry" : "RedisLockRegistry";

  @Test
  void theExamplesOfThePageCompile() throws Exception {
    List<String> examples = Pages.found(PAGE, "```java\n(.*?)```");
    assertThat(examples).hasSize(4);
    Pages.compiled("example.FirstLock", examples.get(0));
    Pages.compiled("Orders", IMPORTS + examples.get(1));
    Pages.compiled("Client", IMPORTS + "class Client {\n" + examples.get(2) + "}");
    Pages.compiled("Registry", IMPORTS + "abstract class Registry {\n  abstract void pay(String order);\n"
        + "  void run(" + REGISTRY + " registry) throws Exception {\n" + examples.get(3) + "}\n}");
  }

  @Test
  void theRegistryIsInjectedAsThePageSays() throws Exception {
    Class<?> injected = Pages.compiled("Injected", IMPORTS + "import io.github.redislock.spring.integration.*;\n"
        + "public class Injected {\n  public final boolean isOne;\n"
        + "  public Injected(" + REGISTRY + " registry, " + OWN_TYPE + " own) {\n"
        + "    isOne = registry == own;\n  }\n}");
    new ApplicationContextRunner()
        .withConfiguration(AutoConfigurations.of(
            RedisLockAutoConfiguration.class, RedisLockIntegrationAutoConfiguration.class))
        .withBean(LettuceConnectionFactory.class, LettuceConnectionFactory::new)
        .withBean(injected)
        .run(context -> assertThat(injected.getField("isOne").get(context.getBean(injected)))
            .isEqualTo(true));
  }

  @Test
  void theCallsOfSpringIntegrationRun() throws Exception {
    int rows = run("From Spring Integration's", """
        static Lock lock;
        static %1$s registry;
        static %1$s distributed;
        static TaskScheduler scheduler = new SimpleAsyncTaskScheduler();
        """.formatted(OWN_TYPE), """
        registry = new %1$s(locks, "orders");
        distributed = new %1$s(locks, "others");
        distributed.obtain("42").lock();
        lock = registry.obtain("42");
        lock.lock();
        """.formatted(OWN_TYPE));
    assertThat(rows).isEqualTo(IS_SEVEN ? 14 : 10);
  }

  @Test
  void theCallsOfShedLockRun() throws Exception {
    assertThat(run("From ShedLock's", "", "")).isEqualTo(3);
  }

  @Test
  void theCallsInPlaceOfRedissonRun() throws Exception {
    int rows = run("From Redisson's", "static RedisLock lock; static Hold hold;", """
        lock = locks.lock("orders:42");
        hold = locks.lock("orders:43").tryAcquire().orElseThrow();
        """);
    assertThat(rows).isEqualTo(13);
  }

  /** Runs the calls of each row of a section as a program. Returns the number of rows. */
  private int run(String section, String fields, String first) throws Exception {
    String text = Pages.found(MIGRATION, "^## " + section + "(.*?)(?=^## |\\z)").get(0);
    String imports = String.join("\n", codes(text, "`(import io\\.github[^`]*)`"));
    int count = 0;
    for (List<String> calls : rows(text)) {
      String name = "Row" + count++;
      Class<?> row = Pages.compiled(name, IMPORTS + imports + "public class " + name + " {\n"
          + "static Locks locks;\n" + fields + "static void pay(String order) {}\n"
          + "public static void run(Locks given) throws Throwable {\nlocks = given;\n"
          + first + String.join(";\n", calls) + ";\n}\n}");
      run(row);
    }
    return count;
  }

  private static void run(Class<?> row) throws Exception {
    try (TestServer server = new TestServer();
        Locks locks = server.locks(TestServer.Kind.LETTUCE)) {
      row.getMethod("run", Locks.class).invoke(null, locks);
    }
  }

  /** Returns the calls of each row that has some: those that are new, or that stay. */
  private static List<List<String>> rows(String text) {
    List<List<String>> rows = new ArrayList<>();
    boolean areNew = true;
    for (String line : text.lines().filter(line -> line.startsWith("| ")).toList()) {
      String[] cells = line.split(" \\| ");
      if (line.startsWith("| now |")) areNew = true;
      if (line.startsWith("| call |")) areNew = false;
      String cell = areNew && !cells[1].startsWith("the same") ? cells[1] : cells[0];
      List<String> calls = codes(cell, "`([^`@]*\\))`");
      // A call that drops its hold would lose the lock.
      assertThat(calls).allMatch(call -> !call.contains("cquire") || call.contains(" = "));
      if (!calls.isEmpty()) rows.add(calls);
    }
    return rows;
  }

  /** Returns the codes that the version of Spring Integration has. */
  private static List<String> codes(String text, String pattern) {
    return Pages.matches(text, pattern).stream()
        .filter(code -> IS_SEVEN || !code.contains("istributed"))
        .toList();
  }

  @Test
  void thePropertiesOfThePageAreThoseOfTheMetadata() throws Exception {
    Map<String, String> documented = new TreeMap<>();
    for (String row : Pages.found(PAGE, "^\\| (`redis-lock\\.[^\\n]*)$")) {
      List<String> cells = Pages.matches(row, "`([^`]*)`");
      documented.put(cells.get(0), cells.get(1));
    }
    assertThat(documented).isEqualTo(metadata());
  }

  private static Map<String, String> metadata() throws Exception {
    String name = "/META-INF/spring-configuration-metadata.json";
    try (var file = RedisLockProperties.class.getResourceAsStream(name)) {
      String json = new String(file.readAllBytes(), StandardCharsets.UTF_8);
      Map<String, String> defaults = new TreeMap<>();
      Map<String, Object> all = JsonParserFactory.getJsonParser().parseMap(json);
      for (Object property : (List<?>) all.get("properties")) {
        Map<?, ?> fields = (Map<?, ?>) property;
        assertThat(fields.get("description")).as("%s", fields.get("name")).isNotNull();
        defaults.put((String) fields.get("name"), String.valueOf(fields.get("defaultValue")));
      }
      return defaults;
    }
  }
}
