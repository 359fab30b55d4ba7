package io.github.redislock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A Sentinel that watches one primary by the name "locks". */
final class TestSentinel implements AutoCloseable {
  private final int port;
  private final Process process;

  TestSentinel(int primary) throws IOException {
    TestServer.Served sentinel = TestServer.served(port -> started(port, primary));
    port = sentinel.port();
    process = sentinel.process();
  }

  private static Process started(int port, int primary) throws IOException {
    Path folder = Files.createTempDirectory("redis-lock");
    Path configuration = folder.resolve("sentinel.conf");
    Files.writeString(configuration,
        "port " + port + "\ndir " + folder + "\nsentinel monitor locks 127.0.0.1 " + primary + " 1\n");
    return new ProcessBuilder(System.getenv("REDIS_SERVER"), configuration.toString(), "--sentinel")
        .redirectErrorStream(true)
        .redirectOutput(folder.resolve("log").toFile())
        .start();
  }

  int port() {
    return port;
  }

  @Override
  public void close() {
    process.destroyForcibly().onExit().join();
  }
}
