package io.github.redislock.spring.boot;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.OutageException;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.springframework.context.SmartLifecycle;

/**
 * A link that lives as long as the client of the application's connection factory. A context that
 * is stopped and started again has a new client, and so a new link.
 */
final class LifecycleLink implements Link, SmartLifecycle {
  /** Connection factories stop in phase 0, after the beans of greater phases. */
  private static final int PHASE = 1;

  private final Supplier<Opened> opener;
  private @Nullable Opened current;
  private boolean isStopped;

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
  public @Nullable Object send(Command command, Call call, long until) throws InterruptedException {
    Link link = current();
    try {
      return link.send(command, call, until);
    } catch (IllegalStateException closed) {
      throw isUsed(link) ? closed : OutageException.failed(closed);
    }
  }

  /** Returns the link. A bean may lock before the context starts. */
  private synchronized Link current() {
    if (!isStopped) return opened().link();
    throw OutageException.failed(new IllegalStateException("the application is stopped"));
  }

  private Opened opened() {
    Opened link = current;
    if (link == null) {
      link = opener.get();
      current = link;
    }
    return link;
  }

  private synchronized boolean isUsed(Link link) {
    return current != null && current.link() == link;
  }

  @Override
  public synchronized void start() {
    isStopped = false;
    opened();
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
  private synchronized @Nullable Opened ended() {
    Opened last = current;
    current = null;
    isStopped = true;
    return last;
  }

  @Override
  public synchronized boolean isRunning() {
    return current != null;
  }

  @Override
  public int getPhase() {
    return PHASE;
  }

  @Override
  public void close() {
    stop();
  }
}
