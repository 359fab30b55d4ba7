package io.github.redislock.jedis;

import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import redis.clients.jedis.Connection;

/**
 * The connections of a session. The server ends a session with the connection that it is tied to, so a
 * silent connection stays open until a command on another one, which moves the session, has its reply.
 */
final class SessionConnections extends Connections {
  private final Queue<Connection> silent = new ConcurrentLinkedQueue<>();

  SessionConnections(Opening opening) {
    super(opening);
  }

  @Override
  void leave(Connection connection) {
    silent.add(connection);
    if (isClosed()) replied();
  }

  @Override
  void replied() {
    for (Connection left; (left = silent.poll()) != null; ) left.close();
  }

  @Override
  void close() {
    super.close();
    replied();
  }
}
