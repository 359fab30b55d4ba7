package io.github.redislock.jedis;

import io.github.redislock.spi.OutageException;
import io.github.redislock.spi.Pool;
import io.github.redislock.spi.ServerError;
import java.net.SocketTimeoutException;
import org.apache.commons.pool2.PooledObjectFactory;
import redis.clients.jedis.Connection;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/** Connections to a server, made like those of the program's pool for it. */
final class Node extends Pool<Connection> {
  private final PooledObjectFactory<Connection> factory;

  Node(redis.clients.jedis.util.Pool<Connection> source) {
    factory = source.getFactory();
  }

  @Override
  protected Connection open() throws Exception {
    return factory.makeObject().getObject();
  }

  /** Returns true if Jedis needn't reopen a connection, which it does without AUTH and SELECT. */
  @Override
  protected boolean isOpen(Connection connection) {
    return connection.isConnected() && !connection.isBroken();
  }

  @Override
  protected void close(Connection connection) {
    disconnect(connection);
  }

  static void disconnect(Connection connection) {
    connection.setBroken();
    try {
      connection.disconnect();
    } catch (JedisConnectionException closed) {
      // It is closed.
    }
  }

  @Override
  protected Throwable failure(Throwable error) {
    return told(error);
  }

  static Throwable told(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof LinkageError) return cause;
      if (cause instanceof JedisDataException reply) {
        return new ServerError(reply.getMessage(), reply);
      }
      if (cause instanceof SocketTimeoutException) return OutageException.late(error);
      for (Throwable also : cause.getSuppressed()) {
        if (told(also) instanceof ServerError reply) return reply;
      }
    }
    return error instanceof JedisException ? OutageException.failed(error) : error;
  }
}
