package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The code of the README, word for word except for the address of the server. */
class ReadmeTest {
  private static String page;
  private static Path folder;

  @BeforeAll
  static void read() throws Exception {
    page = Files.readString(Path.of(System.getProperty("readme")));
    folder = Files.createTempDirectory("redis-lock-readme");
  }

  @Test
  void theFirstProgramTakesTurnsWithItself() throws Exception {
    try (TestServer server = new TestServer()) {
      String program = blocks("java").get(0);
      compile("FirstLock", program, server);
      Process one = run("FirstLock");
      Process other = run("FirstLock");
      long fences = fenceOf(one) - fenceOf(other);
      assertTrue(fences != 0, "the same fence");
    }
  }

  @Test
  void theOtherBlocksWork() throws Exception {
    try (TestServer server = new TestServer()) {
      List<String> parts = blocks("java").subList(1, blocks("java").size());
      for (int part = 0; part < parts.size(); part++) {
        String name = "Part" + part;
        compile(name, programOf(name, parts.get(part)), server);
        Process process = run(name);
        assertEquals("ended\n", textOf(process), parts.get(part));
      }
      assertTrue(parts.size() >= 4);
    }
  }

  /** Returns a program of imports and statements, with what the page takes for granted. */
  private static String programOf(String name, String part) {
    List<String> imports = part.lines().filter(line -> line.startsWith("import ")).toList();
    String statements = String.join("\n", part.lines().filter(line -> !line.startsWith("import ")).toList());
    String made = statements.contains("Locks locks =")
        ? ""
        : "io.github.redislock.Locks locks = new io.github.redislock.Locks("
            + "new io.github.redislock.lettuce.LettuceLink(io.lettuce.core.RedisClient.create(\"redis://localhost:6379\")));";
    return String.join("\n", imports) + "\nimport io.github.redislock.*;\nimport java.time.Duration;\npublic class " + name + " {\n"
        + "static void store(String order, long fence) {}\n"
        + "public static void main(String[] arguments) throws Exception {\n" + made + "\n" + statements
        + "\nSystem.out.println(\"ended\");\nlocks.close();\nSystem.exit(0);\n}\n}\n";
  }

  private static List<String> blocks(String language) {
    Matcher matcher = Pattern.compile("^```" + language + "\n(.*?)^```", Pattern.DOTALL | Pattern.MULTILINE).matcher(page);
    return matcher.results().map((MatchResult block) -> block.group(1)).toList();
  }

  private static void compile(String name, String program, TestServer server) throws Exception {
    String here = program.replace("localhost:6379", "localhost:" + server.port());
    Path file = Files.writeString(folder.resolve(name + ".java"), here);
    int faults = ToolProvider.getSystemJavaCompiler().run(null, null, null, "-d", folder.toString(), file.toString());
    assertEquals(0, faults, here);
  }

  private static Process run(String name) throws Exception {
    List<String> words = new ArrayList<>(List.of("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp",
        folder + ":" + System.getProperty("java.class.path"), name));
    // A slow machine may log an outage.
    return new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
  }

  private static long fenceOf(Process process) throws Exception {
    String text = textOf(process);
    Matcher matcher = Pattern.compile("mine, with fence (\\d{16})\ndone\n").matcher(text);
    assertTrue(matcher.matches(), text);
    return Long.parseLong(matcher.group(1));
  }

  private static String textOf(Process process) throws Exception {
    String text = new String(process.getInputStream().readAllBytes());
    assertTrue(process.waitFor(30, TimeUnit.SECONDS));
    return text;
  }
}
