package io.github.redislock;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Tests that each have a server, and locks by one kind of client. */
public abstract class OneServer {
  protected TestServer server;
  protected Locks locks;
  final TestServer.Kind kind;

  protected OneServer() {
    this(TestServer.Kind.LETTUCE);
  }

  OneServer(TestServer.Kind kind) {
    this.kind = kind;
  }

  @BeforeEach
  protected void startServer() {
    server = new TestServer();
    locks = server.locks(kind);
  }

  @AfterEach
  protected void closeServer() {
    locks.close();
    server.close();
  }
}
