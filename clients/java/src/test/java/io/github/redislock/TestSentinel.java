package io.github.redislock;

import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;

/** A Sentinel that watches one primary by the name "locks". */
final class TestSentinel implements AutoCloseable {
  private final int port;
  private final Process process;

  TestSentinel(int primary) throws Exception {
    try (ServerSocket free = new ServerSocket(0)) {
      port = free.getLocalPort();
    }
    Path folder = Files.createTempDirectory("redis-lock");
    Path configuration = folder.resolve("sentinel.conf");
    Files.writeString(configuration,
        "port " + port + "\ndir " + folder + "\nsentinel monitor locks 127.0.0.1 " + primary + " 1\n");
    process = new ProcessBuilder(System.getenv("REDIS_SERVER"), configuration.toString(), "--sentinel")
        .redirectErrorStream(true)
        .redirectOutput(folder.resolve("log").toFile())
        .start();
    TestServer.until(() -> TestServer.replies(port));
  }

  int port() {
    return port;
  }

  @Override
  public void close() {
    process.destroyForcibly().onExit().join();
  }
}
