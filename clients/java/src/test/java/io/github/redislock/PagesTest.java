package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The README, and the pages of docs/migrate for Java programs: programs and calls run. */
public class PagesTest extends OneServer {
  private static final Path README = Path.of("README.md");
  private static final Path MIGRATION = Path.of("../../docs/migrate");
  private static final String ADDRESS = "redis://localhost:6379";
  private static final Pattern CALL = Pattern.compile(
      "((Optional<)?Hold>? hold = |!)?(locks|lock|semaphore|pages|hold|LockOptions)\\.\\w+\\(.*\\).*");
  /** Calls of a thread that has the lock. */
  private static final Pattern OF_OWNER =
      Pattern.compile("lock\\.(unlock|fence|extend|left|getHoldCount|isHeldByCurrentThread)\\(.*");

  @Test
  void theFirstProgramTakesTurnsWithItself() throws Exception {
    Class<?> program = program("FirstLock", Pages.found(README, "^```java\n(.*?)^```").get(0));
    String text = printed(() -> {
      CompletableFuture<?> other = CompletableFuture.supplyAsync(() -> run(program));
      run(program);
      return other.get(30, TimeUnit.SECONDS);
    });
    List<String> fences = Pages.matches(text, "mine, with fence (\\d{16})\n");
    assertEquals(2, fences.stream().distinct().count(), text);
  }

  @Test
  void theOtherBlocksOfTheReadmeWork() throws Exception {
    List<String> blocks = Pages.found(README, "^```java\n(.*?)^```");
    assertTrue(blocks.size() >= 5);
    for (int part = 1; part < blocks.size(); part++) {
      String name = "Part" + part;
      run(program(name, programOf(name, blocks.get(part))));
    }
  }

  /** Returns a program of imports and statements, with what the page takes for granted. */
  private static String programOf(String name, String part) {
    String imports = String.join("\n", Pages.matches(part, "^(import [^\n]*)"));
    String statements = part.replaceAll("(?m)^import .*$", "");
    String made = statements.contains("Locks locks =") ? "" : """
        Locks locks = new Locks(new io.github.redislock.lettuce.LettuceLink(
            io.lettuce.core.RedisClient.create("%s")));
        """.formatted(ADDRESS);
    return """
        %s
        import io.github.redislock.*;
        import java.time.Duration;
        public class %s {
          static void store(String order, long fence) {}
          public static void main(String[] arguments) throws Exception {
            %s
            %s
            locks.close();
          }
        }
        """.formatted(imports, name, made, statements);
  }

  @Test
  void theProgramOfTheMigrationRuns() throws Exception {
    String program = Pages.found(MIGRATION.resolve("redisson.md"), "```java\n(.*?)```").get(0);
    Class<?> orders = program("Orders", program);
    assertEquals("alone with order 42\n", printed(() -> run(orders)));
  }

  /** Compiles a program, which then uses this server. */
  private Class<?> program(String name, String text) throws Exception {
    assertTrue(text.contains(ADDRESS), text);
    return Pages.compiled(name, text.replace(ADDRESS, "redis://localhost:" + server.port()));
  }

  private static Object run(Class<?> program) {
    try {
      return program.getMethod("main", String[].class).invoke(null, (Object) new String[0]);
    } catch (ReflectiveOperationException fault) {
      throw new AssertionError(fault);
    }
  }

  private static String printed(Callable<?> work) throws Exception {
    ByteArrayOutputStream output = new ByteArrayOutputStream();
    PrintStream before = System.out;
    System.setOut(new PrintStream(output, true));
    try {
      work.call();
    } finally {
      System.setOut(before);
    }
    return output.toString();
  }

  /** The objects that a cell's calls use. */
  public record Given(
      Locks locks, RedisLock lock, RedisSemaphore semaphore, RedisReadWriteLock pages, Hold hold,
      Thread leader, List<Object> results) {
    static Given of(Locks locks) {
      return new Given(locks, locks.lock("orders:42"), locks.semaphore("printers", 2),
          locks.readWriteLock("page:7"), locks.lock("held").tryAcquire().orElseThrow(),
          Thread.currentThread(), new ArrayList<>());
    }
  }

  @Test
  void everyCallOfTheTablesRuns() throws Exception {
    List<List<String>> cells = new ArrayList<>();
    for (String page : List.of("redisson.md", "set-nx.md", "zookeeper-etcd-consul.md")) {
      cells.addAll(cellsOf(Files.readString(MIGRATION.resolve(page))));
    }
    assertTrue(cells.size() > 50, cells.size() + " cells");
    StringBuilder methods = new StringBuilder();
    for (int cell = 0; cell < cells.size(); cell++) methods.append(methodOf(cell, cells.get(cell)));
    Class<?> calls = Pages.compiled("Calls", """
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
    for (int cell = 0; cell < cells.size(); cell++) {
      List<String> texts = cells.get(cell);
      String name = "call" + cell;
      CompletableFuture.runAsync(() -> run(calls, name, texts)).get(30, TimeUnit.SECONDS);
    }
  }

  /** Returns a method with the calls of a cell. Each result goes to {@link #isOwner}. */
  private static String methodOf(int number, List<String> calls) {
    boolean declares = calls.stream().anyMatch(call -> call.contains(" hold = "));
    String body = declares ? "" : "Hold hold = given.hold();\n";
    for (String call : calls) {
      boolean isAssignment = call.contains(" hold = ");
      body += isAssignment ? call + ";\n" : "given.results().add(of(() -> " + call + "));\n";
    }
    return """
        public static void call%d(PagesTest.Given given) throws Exception {
          Locks locks = given.locks();
          RedisLock lock = given.lock();
          RedisSemaphore semaphore = given.semaphore();
          RedisReadWriteLock pages = given.pages();
          Thread leader = given.leader();
          Duration d = Duration.ofMinutes(1);
          %s
        }
        """.formatted(number, body);
  }

  private void run(Class<?> calls, String name, List<String> cell) {
    try (Locks locks = server.locks(TestServer.Kind.JEDIS)) {
      Given given = Given.of(locks);
      if (OF_OWNER.matcher(cell.get(0)).matches()) given.lock().lock();
      calls.getMethod(name, Given.class).invoke(null, given);
      for (Object result : given.results()) {
        assertFalse(isOwner(result), "a grant is dropped: " + cell);
      }
      locks.releaseAll();
    } catch (InvocationTargetException fault) {
      throw new AssertionError(cell.toString(), fault.getCause());
    } catch (ReflectiveOperationException fault) {
      throw new AssertionError(fault);
    }
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
    int java = -1;
    for (String line : page.lines().toList()) {
      List<String> row = List.of(line.split("\\s*\\|\\s*"));
      if (!line.startsWith("|")) java = -1;
      if (row.contains("Java")) java = row.indexOf("Java");
      if (java < 0 || java >= row.size()) continue;
      List<String> calls = Pages.matches(row.get(java), "`([^`]+)`").stream()
          .filter(CALL.asMatchPredicate()).toList();
      if (!calls.isEmpty()) cells.add(calls);
    }
    return cells;
  }
}
