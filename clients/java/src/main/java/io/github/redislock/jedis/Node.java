package io.github.redislock.jedis;

import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Pool;
import java.net.SocketTimeoutException;
import java.util.concurrent.CompletionException;
import redis.clients.jedis.Connection;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/** Connections to a server, made like those of the program's pool for it. */
final class Node extends Pool<Connection> {
  private final redis.clients.jedis.util.Pool<Connection> source;

  Node(redis.clients.jedis.util.Pool<Connection> source) {
    this.source = source;
  }

  @Override
  protected Connection open() {
    try {
      return source.getFactory().makeObject().getObject();
    } catch (Exception failure) {
      throw new CompletionException(failure);
    }
  }

  /** Returns true if Jedis needn't reopen a connection, which it does without AUTH and SELECT. */
  @Override
  protected boolean isOpen(Connection connection) {
    return connection.isConnected() && !connection.isBroken();
  }

  @Override
  protected void close(Connection connection) {
    connection.setBroken();
    try {
      connection.disconnect();
    } catch (JedisConnectionException closed) {
      // It is closed.
    }
  }

  @Override
  protected Fault meaning(Throwable cause) {
    return meaningOf(cause);
  }

  static Fault meaningOf(Throwable cause) {
    if (cause instanceof JedisDataException) return Fault.REPLY;
    if (cause instanceof SocketTimeoutException) return Fault.LATE;
    return cause instanceof JedisException ? Fault.OUTAGE : Fault.OTHER;
  }
}
