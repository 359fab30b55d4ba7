package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;

/** The pages of docs/migrate for Java programs: the program runs, and each call of the tables compiles. */
class MigrationPagesTest {
  private static final Path PAGES = Path.of("../../docs/migrate");
  private static final Pattern CODE = Pattern.compile("`([^`]+)`");
  private static final Pattern CALL = Pattern.compile("!?(locks|lock|semaphore|pages|hold|LockOptions)\\.\\w+\\(.*\\).*");

  @Test
  void theProgramRuns() throws Exception {
    String page = Files.readString(PAGES.resolve("redisson.md"));
    String program = page.split("```java\n")[1].split("```")[0];
    try (TestServer server = new TestServer()) {
      String address = "redis://localhost:6379";
      assertTrue(program.contains(address));
      List<?> port = (List<?>) server.command("CONFIG", "GET", "port");
      String here = address.replace("6379", new String((byte[]) port.get(1)));
      assertEquals("alone with order 42\n", printed("Orders", program.replace(address, here)));
    }
  }

  @Test
  void everyCallOfTheTablesCompiles() throws Exception {
    List<String> calls = new ArrayList<>();
    for (String page : List.of("redisson.md", "zookeeper-etcd-consul.md")) {
      calls.addAll(callsOf(Files.readString(PAGES.resolve(page))));
    }
    assertTrue(calls.size() > 60, calls.size() + " calls");
    StringBuilder methods = new StringBuilder();
    for (String call : calls) {
      String statement = call.startsWith("!") ? "boolean value = " + call : call;
      methods.append("""
          static void call%d(Locks locks, RedisLock lock, RedisSemaphore semaphore, RedisReadWriteLock pages,
              Hold hold, Thread leader) throws Exception { %s; }
          """.formatted(methods.length(), statement));
    }
    compiled("Calls", """
        import io.github.redislock.*;
        import java.time.Duration;
        import java.util.concurrent.TimeUnit;
        class Calls { %s }
        """.formatted(methods));
  }

  /** Returns the calls in the columns headed Java. */
  private static List<String> callsOf(String page) {
    List<String> calls = new ArrayList<>();
    boolean isJava = false;
    for (String line : page.lines().toList()) {
      if (!line.startsWith("| ") && !line.startsWith("|-")) isJava = false;
      if (line.endsWith("| Java |")) isJava = true;
      if (!isJava || !line.startsWith("| ")) continue;
      String right = line.split(" \\| ")[1];
      CODE.matcher(right).results().map(found -> found.group(1)).filter(CALL.asMatchPredicate()).forEach(calls::add);
    }
    return calls;
  }

  private static String printed(String name, String program) throws Exception {
    ByteArrayOutputStream output = new ByteArrayOutputStream();
    PrintStream before = System.out;
    try (URLClassLoader loader = new URLClassLoader(new URL[] {compiled(name, program).toUri().toURL()})) {
      System.setOut(new PrintStream(output, true));
      loader.loadClass(name).getMethod("main", String[].class).invoke(null, (Object) new String[0]);
    } finally {
      System.setOut(before);
    }
    return output.toString();
  }

  /** Compiles a class, and returns the folder that it is in. */
  private static Path compiled(String name, String program) throws Exception {
    Path folder = Files.createTempDirectory("redis-lock");
    Path source = Files.writeString(folder.resolve(name + ".java"), program);
    ByteArrayOutputStream errors = new ByteArrayOutputStream();
    String classes = System.getProperty("java.class.path") + File.pathSeparator + folder;
    int result = ToolProvider.getSystemJavaCompiler()
        .run(null, null, errors, "-classpath", classes, "-d", folder.toString(), source.toString());
    assertEquals(0, result, errors.toString());
    return folder;
  }
}
