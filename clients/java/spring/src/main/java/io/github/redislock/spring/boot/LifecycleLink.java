package io.github.redislock.spring.boot;

import io.github.redislock.spi.Call;
import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.Fault;
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

  private final Supplier<Link> opener;
  private volatile @Nullable Link current;
  private boolean isStopped;

  LifecycleLink(Supplier<Link> opener) {
    this.opener = opener;
  }

  @Override
  public @Nullable Object send(Command command, Call call, long until) throws InterruptedException {
    Link link = current();
    try {
      return link.send(command, call, until);
    } catch (IllegalStateException closed) {
      throw link == current ? closed : Fault.outage(closed);
    }
  }

  /** Returns the link. A bean may lock before the context starts. */
  private synchronized Link current() {
    if (isStopped) throw Fault.outage("the application is stopped");
    Link link = current == null ? opener.get() : current;
    current = link;
    return link;
  }

  @Override
  public synchronized void start() {
    isStopped = false;
    current();
  }

  /** Closes the connections, before the connection factory shuts its client down. */
  @Override
  public void stop() {
    Link last;
    synchronized (this) {
      last = current;
      current = null;
      isStopped = true;
    }
    if (last != null) last.close();
  }

  @Override
  public boolean isRunning() {
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
