package io.github.redislock.spi;

import org.jspecify.annotations.Nullable;

/**
 * The library's way to a server, a Sentinel group or a cluster, through a Redis client. Many
 * threads use a link at the same time.
 */
public interface Link extends AutoCloseable {
  /**
   * Sends a command once to the server of its first key, and follows redirections. It must use the
   * connection of the call's {@link Session}, if there is one.
   *
   * @param until the time on the {@link Clock} at which the caller gives up
   * @return null, a {@code Long}, a {@code byte[]} or a {@code List} of replies; a map is a list of
   *     its names and values, or of its entries
   * @throws ServerError the server replied with an error
   * @throws OutageException no connection, a lost connection, or no reply until the time
   */
  @Nullable Object send(Command command, Call call, long until) throws InterruptedException;

  /** Closes the connections. Commands under way and later ones fail. */
  @Override
  void close();
}
