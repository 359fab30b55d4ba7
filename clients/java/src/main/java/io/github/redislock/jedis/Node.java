package io.github.redislock.jedis;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Clock;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Fault;
import io.github.redislock.spi.Pool;
import java.net.SocketTimeoutException;
import java.nio.channels.AsynchronousCloseException;
import java.nio.channels.spi.AbstractInterruptibleChannel;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.Connection;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/** Connections to a server, made like those of the program's pool for it. */
final class Node extends Pool<Connection> {
  private final redis.clients.jedis.util.Pool<Connection> source;

  Node(redis.clients.jedis.util.Pool<Connection> source) {
    this.source = source;
  }

  /** Sends a command, to a node that is taking over its slot if {@code isAsking}. */
  @Nullable Object send(Command command, boolean isAsking, Call call, long until)
      throws InterruptedException {
    return exchange(command, call, until, connection -> {
      Supplier<@Nullable Object> read = () -> replyTo(command, isAsking, connection, until);
      return call.isInterruptible() ? interruptibly(connection, read) : read.get();
    });
  }

  private static @Nullable Object replyTo(
      Command command, boolean isAsking, Connection connection, long until) {
    long millis = (until - Clock.now()) / 1_000_000;
    connection.setSoTimeout((int) Math.min(Math.max(millis, 1), Integer.MAX_VALUE));
    if (isAsking) connection.executeCommand(Protocol.Command.ASKING);
    byte[][] words = command.words().toArray(byte[][]::new);
    connection.sendCommand(() -> command.name().getBytes(UTF_8), words);
    return connection.getOne();
  }

  /** Reads a reply. An interrupt closes the connection, because nothing else ends such a read. */
  private @Nullable Object interruptibly(Connection connection, Supplier<@Nullable Object> read)
      throws InterruptedException {
    var reading = new AbstractInterruptibleChannel() {
      @Nullable Object reply() throws AsynchronousCloseException {
        boolean isRead = false;
        begin();
        try {
          Object reply = read.get();
          isRead = true;
          return reply;
        } finally {
          end(isRead);
        }
      }

      @Override
      protected void implCloseChannel() {
        Node.this.close(connection);
      }
    };
    try {
      return reading.reply();
    } catch (AsynchronousCloseException interrupt) {
      Thread.interrupted();
      throw new InterruptedException();
    }
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
  protected Fault.Kind meaning(Throwable cause) {
    return meaningOf(cause);
  }

  static Fault.Kind meaningOf(Throwable cause) {
    if (cause instanceof JedisDataException) return Fault.Kind.REPLY;
    if (cause instanceof SocketTimeoutException) return Fault.Kind.LATE;
    return cause instanceof JedisException ? Fault.Kind.OUTAGE : Fault.Kind.OTHER;
  }
}
