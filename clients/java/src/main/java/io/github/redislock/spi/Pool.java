package io.github.redislock.spi;

import java.util.Set;
import java.util.concurrent.BlockingDeque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * Connections of a Redis client, each for one command at a time. They have the settings of the
 * program's client and are apart from its own ones, so waits delay no renewals and releases.
 *
 * @param <C> the client's type of connections
 */
public abstract class Pool<C> {
  /** The time without a reply after which the unused connections count as dead, too. */
  private static final long SILENCE_NANOS = TimeUnit.MILLISECONDS.toNanos(500);
  private static final int MOST_UNUSED = 32;

  /** The unused connections, and behind them the failures to open one. */
  private final BlockingDeque<CompletableFuture<C>> unused = new LinkedBlockingDeque<>();
  private final Set<C> open = ConcurrentHashMap.newKeySet();
  /** The connections whose latest reply didn't come before a short limit was over. */
  private final Set<C> doubtful = ConcurrentHashMap.newKeySet();
  /** The opening that began before the first call, or null after that. */
  private final AtomicReference<@Nullable CompletableFuture<C>> begun = new AtomicReference<>();
  private volatile boolean isClosed;

  /** Opens a connection, in a thread of the library. */
  protected abstract C open();

  /** Returns true if a connection may be used, also after a reply that didn't come. */
  protected abstract boolean isOpen(C connection);

  /** Closes a connection. */
  protected abstract void close(C connection);

  /** Returns the meaning of an exception of the client. */
  protected abstract Fault.Kind meaning(Throwable cause);

  /** A command and its reply on a connection. */
  @FunctionalInterface
  public interface Exchange<C> {
    /** Sends the command, and returns the reply. */
    @Nullable Object run(C connection) throws InterruptedException;
  }

  /** Sends a command on a connection that no other command has meanwhile. */
  public @Nullable Object exchange(Command command, Call call, long until, Exchange<C> exchange)
      throws InterruptedException {
    C connection = taken(call, until);
    var borrower = call.borrower();
    // After an interrupt the server goes on blocking the connection.
    boolean isReusable = borrower == null && command.blockNanos() == 0;
    call.sends();
    try {
      Object reply = exchange.run(connection);
      call.answered();
      doubtful.remove(connection);
      isReusable = true;
      return reply;
    } catch (RuntimeException | Error error) {
      isReusable = false;
      RuntimeException failure = Fault.of(error, this::meaning);
      boolean isReply = failure instanceof Fault fault && fault.kind() == Fault.Kind.REPLY;
      if (isReply) call.answered();
      boolean isAlive = isAlive(connection, failure, call.sentAt() + command.blockNanos());
      if (!isAlive) closeUnused();
      isReusable = isAlive && borrower == null;
      throw failure;
    } finally {
      if (isReusable && borrower != null) borrower.accept(() -> discard(connection));
      else putBack(connection, isReusable && isOpen(connection));
    }
  }

  private boolean isAlive(C connection, RuntimeException failure, long dueAt) {
    if (!(failure instanceof Fault fault)) return false;
    return switch (fault.kind()) {
      // The name of the server may lead to the new primary by now.
      case REPLY -> !Set.of("READONLY", "MASTERDOWN").contains(fault.code());
      // A connection isn't dead because a short limit is over, unless that happens twice.
      case LATE -> Clock.now() - dueAt < SILENCE_NANOS && doubtful.add(connection);
      default -> false;
    };
  }

  /**
   * Takes a connection, or opens one. Meanwhile takes one that is put back, because a handshake
   * over a slow network may take longer than the limit.
   */
  private C taken(Call call, long until) throws InterruptedException {
    if (isClosed) throw Fault.outage("these connections are closed");
    if (until <= Clock.now()) throw Fault.late(null);
    for (CompletableFuture<C> next; (next = unused.poll()) != null; ) {
      if (next.isCompletedExceptionally()) continue;
      if (isOpen(next.join())) return next.join();
      discard(next.join());
    }
    CompletableFuture<C> early = begun.getAndSet(null);
    CompletableFuture<C> opening = early == null || early.isDone() ? opening() : early;
    try {
      var next = call.await(until, nanos -> unused.poll(nanos, TimeUnit.NANOSECONDS));
      if (next == null) throw Fault.late(null);
      return next.join();
    } catch (CompletionException failure) {
      throw Fault.of(failure, this::meaning);
    } finally {
      opening.cancel(false);
    }
  }

  /** Opens a connection before it is needed. */
  public void begin() {
    begun.set(opening());
  }

  /**
   * Opens a connection in another thread, because DNS, Sentinels and a handshake have no common
   * limit. It goes to the unused ones. A failure goes there, too, unless the future is cancelled
   * before.
   */
  private CompletableFuture<C> opening() {
    CompletableFuture<C> opening = new CompletableFuture<>();
    Background.THREADS.execute(() -> {
      try {
        C connection = open();
        open.add(connection);
        opening.complete(connection);
        putBack(connection, true);
      } catch (RuntimeException | Error failure) {
        if (opening.completeExceptionally(failure)) unused.add(opening);
      }
    });
    return opening;
  }

  private void putBack(C connection, boolean isReusable) {
    if (isReusable && unused.size() < MOST_UNUSED) {
      unused.addFirst(CompletableFuture.completedFuture(connection));
      if (isClosed) close();
    } else {
      discard(connection);
    }
  }

  private void discard(C connection) {
    doubtful.remove(connection);
    if (open.remove(connection)) close(connection);
  }

  private void closeUnused() {
    for (CompletableFuture<C> next; (next = unused.poll()) != null; ) {
      next.thenAccept(this::discard);
    }
  }

  /** Closes all connections, for good. */
  public void close() {
    isClosed = true;
    closeUnused();
    open.forEach(this::discard);
  }
}
