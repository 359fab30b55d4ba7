package io.github.redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.redislock.lettuce.LettuceLink;
import io.github.redislock.spi.Command;
import io.lettuce.core.RedisClient;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Replies that come late, but one after the other: a connection that has them isn't silent. */
class SlowRepliesTest {
  private static final Command CHECK = Command.of("CHECK", List.of("k".getBytes()), "token");
  /** The length of the reply to LOCK.CHECK of a token that holds nothing. */
  private static final int REPLY_LENGTH = ":0\r\n".length();

  @Test
  void aConnectionWithSlowRepliesIsKept() throws Exception {
    try (TestServer server = new TestServer(); SlowProxy proxy = new SlowProxy(server.port())) {
      RedisClient client = RedisClient.create(TestServer.RESOURCES, "redis://127.0.0.1:" + proxy.port());
      try (LettuceLink link = new LettuceLink(client)) {
        link.send(CHECK, Duration.ofSeconds(8)).get(9, TimeUnit.SECONDS);
        proxy.isSlow = true;
        List<CompletableFuture<Object>> replies =
            Stream.generate(() -> link.send(CHECK, Duration.ofSeconds(2))).limit(80).toList();
        TestServer.until(() -> replies.stream().allMatch(CompletableFuture::isDone));
        assertFalse(replies.get(0).isCompletedExceptionally());
        assertTrue(replies.get(79).isCompletedExceptionally());
        proxy.isSlow = false;
        link.send(CHECK, Duration.ofSeconds(8)).get(9, TimeUnit.SECONDS);
        assertEquals(1, proxy.connections.get());
      } finally {
        client.shutdown(Duration.ZERO, Duration.ofSeconds(1));
      }
    }
  }

  /** A proxy that can pass the replies on slowly, each at a time. */
  private static final class SlowProxy implements AutoCloseable {
    final AtomicInteger connections = new AtomicInteger();
    volatile boolean isSlow;
    private final int target;
    private final ServerSocket listening = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());

    SlowProxy(int target) throws IOException {
      this.target = target;
      TestProxy.inBackground(this::accept);
    }

    int port() {
      return listening.getLocalPort();
    }

    private void accept() throws Exception {
      while (true) {
        Socket client = listening.accept();
        connections.incrementAndGet();
        Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
        TestProxy.inBackground(() -> client.getInputStream().transferTo(server.getOutputStream()));
        TestProxy.inBackground(() -> pass(server.getInputStream(), client.getOutputStream()));
      }
    }

    private void pass(InputStream replies, OutputStream client) throws Exception {
      byte[] bytes = new byte[REPLY_LENGTH];
      for (int count; (count = replies.read(bytes)) > 0; ) {
        if (isSlow) Thread.sleep(50);
        client.write(bytes, 0, count);
      }
    }

    @Override
    public void close() throws IOException {
      listening.close();
    }
  }
}
