package io.github.redislock.spi;

import org.jspecify.annotations.Nullable;

/**
 * The library's way to a server, a Sentinel group or a cluster, through a Redis client. Many
 * threads use a link at the same time.
 */
public interface Link extends AutoCloseable {
  /**
   * Sends a command once to the server of its first key, and follows redirections.
   *
   * @param until the time on the {@link Clock} at which the caller gives up
   * @return null, a {@code Long}, a {@code byte[]} or a {@code List} of replies; a map is a list of
   *     its names and values, or of its entries
   * @throws Fault the server replied with an error, there is no connection or a lost one, or no
   *     reply came until the time
   */
  @Nullable Object send(Command command, Call call, long until) throws InterruptedException;

  /** Closes the connections. Commands under way and later ones fail. */
  @Override
  void close();
}
