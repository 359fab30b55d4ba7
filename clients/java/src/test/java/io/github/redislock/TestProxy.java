package io.github.redislock;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;

/** An address that can move to another server. Open connections stay where they are. */
final class TestProxy implements AutoCloseable {
  private final ServerSocket listening = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  private volatile int target;

  TestProxy(int target) throws IOException {
    this.target = target;
    inBackground(this::accept);
  }

  int port() {
    return listening.getLocalPort();
  }

  void moveTo(int target) {
    this.target = target;
  }

  private void accept() throws Exception {
    while (true) {
      Socket client = listening.accept();
      Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
      inBackground(() -> pass(client, server));
      inBackground(() -> pass(server, client));
    }
  }

  private static void pass(Socket from, Socket to) throws IOException {
    try (from; to) {
      from.getInputStream().transferTo(to.getOutputStream());
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
