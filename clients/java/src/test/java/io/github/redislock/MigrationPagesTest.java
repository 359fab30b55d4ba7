package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;

/** The pages of docs/migrate for Java programs: the program and each call of the tables run. */
public class MigrationPagesTest {
  private static final Path PAGES = Path.of("../../docs/migrate");
  private static final Pattern CODE = Pattern.compile("`([^`]+)`");
  private static final Pattern CALL = Pattern.compile(
      "((Optional<)?Hold>? hold = |!)?(locks|lock|semaphore|pages|hold|LockOptions)\\.\\w+\\(.*\\).*");
  /** Calls of a thread that has the lock. */
  private static final Pattern OF_OWNER =
      Pattern.compile("lock\\.(unlock|fence|extend|left|getHoldCount|isHeldByCurrentThread)\\(.*");

  /** What a cell's calls run with. */
  public record Given(
      Locks locks, RedisLock lock, RedisSemaphore semaphore, RedisReadWriteLock pages, Hold hold,
      Thread leader) {}

  @Test
  void theProgramRuns() throws Exception {
    String page = Files.readString(PAGES.resolve("redisson.md"));
    String program = page.split("```java\n")[1].split("```")[0];
    try (TestServer server = new TestServer()) {
      String address = "redis://localhost:6379";
      assertTrue(program.contains(address));
      String here = program.replace(address, "redis://localhost:" + server.port());
      assertEquals("alone with order 42\n", printed("Orders", here));
    }
  }

  @Test
  void everyCallOfTheTablesRuns() throws Exception {
    List<List<String>> cells = new ArrayList<>();
    for (String page : List.of("redisson.md", "zookeeper-etcd-consul.md")) {
      cells.addAll(cellsOf(Files.readString(PAGES.resolve(page))));
    }
    assertTrue(cells.size() > 50, cells.size() + " cells");
    StringBuilder methods = new StringBuilder();
    for (int cell = 0; cell < cells.size(); cell++) methods.append(methodOf(cell, cells.get(cell)));
    Path folder = compiled("Calls", """
        import io.github.redislock.*;
        import java.time.Duration;
        import java.util.Optional;
        import java.util.concurrent.Callable;
        import java.util.concurrent.TimeUnit;
        public class Calls {
          interface Statement { void run() throws Exception; }
          static Object of(Callable<?> call) throws Exception { return call.call(); }
          static Object of(Statement call) throws Exception { call.run(); return null; }
          %s
        }
        """.formatted(methods));
    try (TestServer server = new TestServer();
        URLClassLoader loader = new URLClassLoader(new URL[] {folder.toUri().toURL()})) {
      Class<?> calls = loader.loadClass("Calls");
      for (int cell = 0; cell < cells.size(); cell++) {
        run(calls, cell, cells.get(cell), server);
      }
    }
  }

  /** Returns a method with the calls of a cell. Each result goes to {@link #isOwner}. */
  private static String methodOf(int number, List<String> calls) {
    String body = "";
    boolean declares = calls.stream().anyMatch(call -> call.contains(" hold = "));
    if (!declares) body += "Hold hold = given.hold();\n";
    for (String call : calls) {
      boolean isAssignment = call.contains(" hold = ");
      body += isAssignment ? call + ";\n" : "results.add(of(() -> " + call + "));\n";
    }
    return """
        public static void call%d(Locks locks, RedisLock lock, RedisSemaphore semaphore,
            RedisReadWriteLock pages, io.github.redislock.MigrationPagesTest.Given given,
            Thread leader, java.util.List<Object> results) throws Exception {
          %s
        }
        """.formatted(number, body);
  }

  private static void run(Class<?> calls, int number, List<String> cell, TestServer server)
      throws Exception {
    CompletableFuture.runAsync(() -> {
      try (Locks locks = server.locks(TestServer.Kind.JEDIS)) {
        RedisLock lock = locks.lock("orders:42");
        if (OF_OWNER.matcher(cell.get(0)).matches()) lock.lock();
        Hold hold = locks.lock("held").tryAcquire().orElseThrow();
        Given given = new Given(locks, lock, locks.semaphore("printers", 2),
            locks.readWriteLock("page:7"), hold, Thread.currentThread());
        List<Object> results = new ArrayList<>();
        calls.getMethod("call" + number, Locks.class, RedisLock.class, RedisSemaphore.class,
                RedisReadWriteLock.class, Given.class, Thread.class, List.class)
            .invoke(null, locks, lock, given.semaphore(), given.pages(), given, given.leader(),
                results);
        for (Object result : results) assertFalse(isOwner(result), "a grant is dropped: " + cell);
        locks.releaseAll();
      } catch (InvocationTargetException fault) {
        throw new AssertionError(cell.toString(), fault.getCause());
      } catch (ReflectiveOperationException fault) {
        throw new AssertionError(fault);
      }
    }).get(30, TimeUnit.SECONDS);
  }

  /** Returns true if a result owns a grant, which a program must keep. */
  private static boolean isOwner(Object result) {
    if (result instanceof Optional<?> maybe) return maybe.isPresent() && isOwner(maybe.get());
    return result instanceof Hold
        || result instanceof CompletableFuture<?> future && isOwner(future.join());
  }

  /** Returns the calls of each cell in the columns headed Java. */
  private static List<List<String>> cellsOf(String page) {
    List<List<String>> cells = new ArrayList<>();
    boolean isJava = false;
    for (String line : page.lines().toList()) {
      if (!line.startsWith("| ") && !line.startsWith("|-")) isJava = false;
      if (line.endsWith("| Java |")) isJava = true;
      if (!isJava || !line.startsWith("| ")) continue;
      List<String> calls = CODE.matcher(line.split(" \\| ")[1]).results()
          .map(found -> found.group(1)).filter(CALL.asMatchPredicate()).toList();
      if (!calls.isEmpty()) cells.add(calls);
    }
    return cells;
  }

  private static String printed(String name, String program) throws Exception {
    ByteArrayOutputStream output = new ByteArrayOutputStream();
    PrintStream before = System.out;
    URL folder = compiled(name, program).toUri().toURL();
    try (URLClassLoader loader = new URLClassLoader(new URL[] {folder})) {
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
    int result = ToolProvider.getSystemJavaCompiler().run(
        null, null, errors, "-classpath", classes, "-d", folder.toString(), source.toString());
    assertEquals(0, result, errors.toString());
    return folder;
  }
}
