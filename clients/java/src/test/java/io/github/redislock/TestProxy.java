package io.github.redislock;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;

/** An address of a server whose connections can be frozen, and whose replies can be lost. */
final class TestProxy implements AutoCloseable {
  private final ServerSocket listening = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  private final AtomicInteger freezes = new AtomicInteger();
  private final AtomicReference<String> undelivered = new AtomicReference<>();
  private final int target;

  TestProxy(int target) throws IOException {
    this.target = target;
    inBackground(this::accept);
  }

  int port() {
    return listening.getLocalPort();
  }

  /** Lets nothing through any more on the connections that are open now. */
  void freeze() {
    freezes.incrementAndGet();
  }

  /** Closes the connection instead of passing the reply on, at the next command with this name. */
  void dropReplyTo(String command) {
    undelivered.set(command);
  }

  boolean hasDropped() {
    return undelivered.get() == null;
  }

  private void accept() throws Exception {
    while (true) {
      Socket client = listening.accept();
      Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
      int era = freezes.get();
      AtomicBoolean isSent = new AtomicBoolean();
      inBackground(() -> pass(client, server, era, bytes -> {
        if (isUndelivered(bytes)) isSent.set(true);
        return true;
      }));
      inBackground(() -> pass(server, client, era,
          bytes -> !(isSent.get() && undelivered.getAndSet(null) != null)));
    }
  }

  private boolean isUndelivered(String bytes) {
    String command = undelivered.get();
    return command != null && bytes.contains(command);
  }

  private void pass(Socket from, Socket to, int era, Predicate<String> goesOn) throws IOException {
    byte[] bytes = new byte[4096];
    try (from; to) {
      for (int count; (count = from.getInputStream().read(bytes)) > 0; ) {
        if (!goesOn.test(new String(bytes, 0, count, ISO_8859_1))) return;
        if (era == freezes.get()) to.getOutputStream().write(bytes, 0, count);
      }
    }
  }

  interface Work {
    void run() throws Exception;
  }

  /** Runs work until it ends or one end of a connection is gone. */
  static void inBackground(Work work) {
    Thread thread = new Thread(() -> {
      try {
        work.run();
      } catch (Exception closed) {
        // One end is gone.
      }
    });
    thread.setDaemon(true);
    thread.start();
  }

  @Override
  public void close() throws IOException {
    listening.close();
  }
}
