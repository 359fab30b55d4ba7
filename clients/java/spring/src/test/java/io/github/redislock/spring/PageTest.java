package io.github.redislock.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.redislock.spring.boot.RedisLockAutoConfiguration;
import io.github.redislock.spring.boot.RedisLockIntegrationAutoConfiguration;
import io.github.redislock.spring.boot.RedisLockProperties;
import io.github.redislock.spring.integration.RedisLockRegistry;
import java.io.StringWriter;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.json.JsonParserFactory;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.util.ClassUtils;

/** The pages of the starter: their code compiles, and their properties exist. */
class PageTest {
  private static final Path PAGE = Path.of("README.md");
  private static final Path MIGRATION = Path.of("../../../docs/migrate/spring.md");
  private static final String IMPORTS = """
      import io.github.redislock.*;
      import io.github.redislock.lettuce.LettuceLink;
      import io.github.redislock.spi.Link;
      import io.github.redislock.spring.integration.RedisLockRegistry;
      import io.github.redislock.spring.shedlock.RedisLockProvider;
      import io.lettuce.core.RedisClient;
      import java.time.Duration;
      import java.util.concurrent.TimeUnit;
      import org.springframework.context.annotation.Bean;
      import org.springframework.integration.support.locks.*;
      import org.springframework.stereotype.Service;
      """;

  private static final String REGISTRY =
      ClassUtils.isPresent("org.springframework.integration.support.locks.DistributedLock", null)
          ? "LockRegistry<DistributedLock>"
          : "LockRegistry";

  @TempDir Path folder;

  @Test
  void theExamplesOfThePageCompile() throws Exception {
    List<String> examples = found(PAGE, "```java\n(.*?)```");
    assertThat(examples).hasSize(4);
    compile("example/FirstLock", examples.get(0));
    compile("Orders", IMPORTS + examples.get(1));
    compile("Client", IMPORTS + "class Client {\n" + examples.get(2) + "}");
    compile("Registry", IMPORTS + "abstract class Registry {\n  abstract void pay(String order);\n"
        + "  void run(" + REGISTRY + " registry) throws Exception {\n" + examples.get(3) + "}\n}");
  }

  @Test
  void theRegistryIsInjectedAsThePageSays() throws Exception {
    compile("Injected", IMPORTS + "public class Injected {\n  public final Object registry;\n"
        + "  public Injected(" + REGISTRY + " registry) {\n    this.registry = registry;\n  }\n}");
    Class<?> injected = new URLClassLoader(new URL[] {folder.toUri().toURL()}).loadClass("Injected");
    new ApplicationContextRunner()
        .withConfiguration(AutoConfigurations.of(RedisLockAutoConfiguration.class, RedisLockIntegrationAutoConfiguration.class))
        .withBean(LettuceConnectionFactory.class, () -> new LettuceConnectionFactory("127.0.0.1", 1))
        .withBean(injected)
        .run(context -> assertThat(injected.getField("registry").get(context.getBean(injected)))
            .isSameAs(context.getBean(RedisLockRegistry.class)));
  }

  @Test
  void theNewLinesOfTheMigrationCompile() throws Exception {
    StringBuilder all = new StringBuilder(IMPORTS + "class Migration {\n  void run(Locks locks, RedisLock lock) {\n");
    int lines = 0;
    for (String row : found(MIGRATION, "^\\| `[^\\n]*? \\| ([^\\n]*) \\|$")) {
      for (String code : matches(row, "`((?:new RedisLock|locks\\.|lock\\.|RedisLock lock =)[^`]*)`")) {
        all.append("    { ").append(code.replace("RedisLock lock =", "RedisLock made =")).append("; }\n");
        lines++;
      }
    }
    assertThat(lines).isGreaterThan(12);
    compile("Migration", all + "  }\n}");
  }

  @Test
  void thePropertiesOfThePageAreThoseOfTheMetadata() throws Exception {
    Map<String, String> documented = new TreeMap<>();
    for (String row : found(PAGE, "^\\| (`redis-lock\\.[^\\n]*)$")) {
      List<String> cells = matches(row, "`([^`]*)`");
      documented.put(cells.get(0), cells.get(1));
    }
    assertThat(documented).isEqualTo(metadata());
  }

  private static Map<String, String> metadata() throws Exception {
    try (var file = RedisLockProperties.class.getResourceAsStream("/META-INF/spring-configuration-metadata.json")) {
      String json = new String(file.readAllBytes(), StandardCharsets.UTF_8);
      Map<String, String> defaults = new TreeMap<>();
      for (Object property : (List<?>) JsonParserFactory.getJsonParser().parseMap(json).get("properties")) {
        Map<?, ?> fields = (Map<?, ?>) property;
        assertThat(fields.get("description")).as("description of %s", fields.get("name")).isNotNull();
        defaults.put((String) fields.get("name"), String.valueOf(fields.get("defaultValue")));
      }
      return defaults;
    }
  }

  private void compile(String name, String source) throws Exception {
    Path file = folder.resolve(name + ".java");
    Files.createDirectories(file.getParent());
    Files.writeString(file, source);
    JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
    StringWriter errors = new StringWriter();
    List<String> options = List.of("-proc:none", "-d", folder.toString(), "-cp",
        System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")));
    var files = compiler.getStandardFileManager(null, null, null).getJavaFileObjects(file);
    boolean isCompiled = compiler.getTask(errors, null, null, options, null, files).call();
    assertThat(isCompiled).as("%s\n%s", errors, source).isTrue();
  }

  private static List<String> found(Path page, String pattern) throws Exception {
    return matches(Files.readString(page), pattern);
  }

  private static List<String> matches(String text, String pattern) {
    return new ArrayList<>(Pattern.compile(pattern, Pattern.DOTALL | Pattern.MULTILINE).matcher(text).results()
        .map((MatchResult match) -> match.group(1)).toList());
  }
}
