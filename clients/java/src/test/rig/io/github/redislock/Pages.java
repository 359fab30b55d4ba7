package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;

/** Programs and tables of the pages of the documentation. */
public final class Pages {
  private Pages() {}

  /** Returns the first group of each match. A dot matches the ends of lines, too. */
  public static List<String> found(Path page, String pattern) throws Exception {
    return matches(Files.readString(page), pattern);
  }

  public static List<String> matches(String text, String pattern) {
    return Pattern.compile(pattern, Pattern.DOTALL | Pattern.MULTILINE).matcher(text)
        .results().map(match -> match.group(1)).toList();
  }

  /** Compiles a class, and returns it. */
  public static Class<?> compiled(String name, String program) throws Exception {
    Path folder = Files.createTempDirectory("redis-lock");
    Path source = folder.resolve(name.replace('.', '/') + ".java");
    Files.createDirectories(source.getParent());
    Files.writeString(source, program);
    ByteArrayOutputStream errors = new ByteArrayOutputStream();
    String classes = System.getProperty(
        "surefire.test.class.path", System.getProperty("java.class.path"));
    int faults = ToolProvider.getSystemJavaCompiler().run(null, null, errors, "-proc:none",
        "-cp", classes + File.pathSeparator + folder, "-d", folder.toString(), source.toString());
    assertEquals(0, faults, () -> errors + "\n" + program);
    return new URLClassLoader(new URL[] {folder.toUri().toURL()}).loadClass(name);
  }
}
