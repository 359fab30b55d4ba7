package io.github.redislock.spi;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * The library's way to a server, a Sentinel group or a cluster, through a Redis client. No method
 * blocks its caller.
 *
 * <p>A reply is null, a {@code Long}, a {@code byte[]} or a {@code List} of replies. A map is a list of its
 * names and values. A future fails with {@link ServerError} if the server replied with an error, and with
 * any other exception if there was no reply: no connection, a lost connection, or none within the limit.
 */
public interface Link extends AutoCloseable {
  /** Sends a command once to the node of its first key. Redirections are followed. */
  CompletableFuture<Object> send(Command command, Duration limit);

  /**
   * Returns a turn in the queue whose grant the server announces by NOTIFY. Empty if this link waits
   * by {@link #block}.
   */
  Optional<Turn> turn(byte[] key, Runnable announced);

  /**
   * Sends a LOCK.WAIT on a connection that it has to itself. Cancelling the future closes the
   * connection. The link sends PING on another connection every few seconds, and the future fails if
   * the server doesn't reply to that.
   *
   * @param limit the time until the reply at most, or zero for no limit
   * @param attempt the time until the command is sent at most, with connecting
   * @param progress hears of the command until the future ends
   */
  CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress);

  /** Returns a link with connections that nobody else uses, for sessions and held-back replies. */
  Link own();

  /** Closes the connections. It may block for a moment, so no thread of the Redis client calls it. */
  @Override
  void close();

  /** The progress of a LOCK.WAIT, which has no reply before its end. */
  interface Progress {
    /** Notes that the command is sent immediately after this call. */
    void sending();

    /** Notes that the server has replied to a PING since the command was sent. */
    default void alive() {}
  }

  /** A turn in the queue, with the words of NOTIFY that belong into its command. */
  interface Turn extends AutoCloseable {
    java.util.List<byte[]> words();

    /** Fails with {@link ServerError} if the server refuses the subscription. */
    CompletableFuture<Void> listening();

    @Override
    void close();
  }
}
