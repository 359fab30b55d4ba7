package io.github.redislock.lettuce;

import io.lettuce.core.api.StatefulConnection;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Supplier;

/**
 * The connection of a session. The server ends a session with the connection that it is tied to, so a
 * silent connection stays open until a command on the next one, which moves the session, has its reply.
 */
final class KeptForSession<C extends StatefulConnection<?, ?>> extends Kept<C> {
  private final Queue<CompletableFuture<C>> silent = new ConcurrentLinkedQueue<>();

  KeptForSession(Supplier<C> opened) {
    super(opened);
  }

  @Override
  void leave(CompletableFuture<C> dropped) {
    silent.add(dropped);
  }

  @Override
  void replied(CompletableFuture<C> by) {
    // The late reply of a silent connection doesn't count.
    if (isCurrent(by)) closeSilent();
  }

  @Override
  CompletableFuture<?> close() {
    closeSilent();
    return super.close();
  }

  private void closeSilent() {
    for (CompletableFuture<C> left; (left = silent.poll()) != null; ) super.leave(left);
  }
}
