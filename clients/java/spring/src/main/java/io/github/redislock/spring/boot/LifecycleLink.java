package io.github.redislock.spring.boot;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.springframework.context.SmartLifecycle;

/**
 * A link that lives as long as the client of the application's connection factory. A context that is
 * stopped and started again has a new client, and so a new link.
 */
final class LifecycleLink implements Link, SmartLifecycle {
  /** Connection factories stop in phase 0, after the beans of greater phases. */
  private static final int PHASE = 1;

  private final Supplier<Opened> opener;
  private Opened current;
  private boolean isRunning;
  private boolean isClosed;

  /**
   * An open link.
   *
   * @param client closes the client below, if nobody else does
   */
  record Opened(Link link, Runnable client) {}

  LifecycleLink(Supplier<Opened> opener) {
    this.opener = opener;
  }

  @Override
  public CompletableFuture<Object> send(Command command, Duration limit) {
    try {
      return current().send(command, limit);
    } catch (RuntimeException unopened) {
      return CompletableFuture.failedFuture(unopened);
    }
  }

  @Override
  public CompletableFuture<Object> block(Command command, Duration limit, Duration attempt, Progress progress) {
    try {
      return current().block(command, limit, attempt, progress);
    } catch (RuntimeException unopened) {
      return CompletableFuture.failedFuture(unopened);
    }
  }

  @Override
  public Optional<Turn> turn(byte[] key, Runnable announced) {
    return current().turn(key, announced);
  }

  @Override
  public Link own() {
    return current().own();
  }

  @Override
  public synchronized void start() {
    isRunning = true;
    // A bean may have locked before.
    if (current == null || isClosed) current = opener.get();
    isClosed = false;
  }

  /** Closes the connections, before the connection factory shuts its client down. */
  @Override
  public void stop() {
    Opened last = ended();
    if (last == null) return;
    last.link().close();
    last.client().run();
  }

  /** Notes the end. Returns what has to be closed, or null. */
  private synchronized Opened ended() {
    isRunning = false;
    if (isClosed) return null;
    isClosed = current != null;
    return current;
  }

  @Override
  public synchronized boolean isRunning() {
    return isRunning;
  }

  @Override
  public int getPhase() {
    return PHASE;
  }

  @Override
  public void close() {
    stop();
  }

  private synchronized Link current() {
    if (current == null) current = opener.get();
    return current.link();
  }
}
