package io.github.redislock.spi;

import java.util.Deque;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentLinkedQueue;
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
  private static final int MOST_IDLE = 32;

  private final Deque<C> idle = new ConcurrentLinkedDeque<>();
  private final Set<C> used = ConcurrentHashMap.newKeySet();
  /** The calls that wait for a connection, in order. */
  private final Queue<CompletableFuture<C>> wanted = new ConcurrentLinkedQueue<>();
  /** The connections whose latest reply didn't come before a short limit was over. */
  private final Set<C> doubtful = ConcurrentHashMap.newKeySet();
  /** The connection that is opened before it is needed. */
  private final AtomicReference<@Nullable CompletableFuture<C>> begun = new AtomicReference<>();
  private volatile boolean isClosed;

  /** Opens a connection, in a thread of the library. */
  protected abstract C open();

  /** Returns true if a connection may be used, also after a reply that didn't come. */
  protected abstract boolean isOpen(C connection);

  /** Closes a connection. */
  protected abstract void close(C connection);

  /** Returns the meaning of an exception of the client. */
  protected abstract Fault meaning(Throwable cause);

  /** A command and its reply on a connection. */
  @FunctionalInterface
  public interface Exchange<C> {
    /** Sends the command, and returns the reply. */
    @Nullable Object run(C connection) throws InterruptedException;
  }

  /** Sends a command on the connection of the call's session, or on one of this pool. */
  public @Nullable Object exchange(Command command, Call call, long until, Exchange<C> exchange)
      throws InterruptedException {
    Session session = call.session();
    C tied = session == null ? null : session.of(this);
    C connection = tied == null ? taken(call, until) : tied;
    // After an interrupt the server goes on blocking the connection.
    boolean isUsable = command.blockNanos() == 0;
    call.sends();
    try {
      Object reply = exchange.run(connection);
      call.answered();
      doubtful.remove(connection);
      isUsable = true;
      return reply;
    } catch (RuntimeException | Error error) {
      isUsable = false;
      RuntimeException failure = Fault.told(error, this::meaning);
      if (failure instanceof ServerError) call.answered();
      long silence = Clock.now() - call.sentAt() - command.blockNanos();
      isUsable = isAlive(connection, failure, silence);
      if (!isUsable) closeIdle();
      throw failure;
    } finally {
      boolean isReusable = isUsable && isOpen(connection);
      if (session == null) putBack(connection, isReusable);
      else session.keep(this, connection, isReusable);
    }
  }

  private boolean isAlive(C connection, RuntimeException failure, long silence) {
    // The name of the server may lead to the new primary by now.
    if (failure instanceof ServerError reply) return !reply.isOfReplica();
    boolean isLate = failure instanceof OutageException outage && outage.isLate();
    // A connection isn't dead because a short limit is over, unless that happens twice.
    return isLate && silence < SILENCE_NANOS && doubtful.add(connection);
  }

  private C taken(Call call, long until) throws InterruptedException {
    if (isClosed) throw OutageException.failed("these connections are closed");
    if (until <= Clock.now()) throw OutageException.late(null);
    C connection = idle.pollFirst();
    while (connection != null && !isOpen(connection)) {
      discard(connection);
      connection = idle.pollFirst();
    }
    if (connection == null) return opened(call, until);
    used.add(connection);
    return connection;
  }

  /**
   * Opens a connection in another thread, because DNS, Sentinels and a handshake have no common
   * limit. Meanwhile takes one that is put back, because a handshake over a slow network may take
   * longer than the limit. A connection that comes too late goes to the pool.
   */
  private C opened(Call call, long until) throws InterruptedException {
    CompletableFuture<C> first = new CompletableFuture<>();
    wanted.add(first);
    CompletableFuture<C> early = begun.getAndSet(null);
    (early == null ? opening() : early).whenComplete((opened, failure) -> {
      if (failure == null) putBack(opened, true);
      else first.completeExceptionally(failure);
    });
    boolean isTaken = false;
    try {
      C connection = call.await(first, until);
      isTaken = true;
      return connection;
    } catch (RuntimeException failure) {
      throw Fault.told(failure, this::meaning);
    } finally {
      wanted.remove(first);
      if (!isTaken && !first.cancel(false)) first.thenAccept(late -> putBack(late, true));
    }
  }

  private CompletableFuture<C> opening() {
    return CompletableFuture.supplyAsync(() -> {
      C opened = open();
      used.add(opened);
      if (isClosed) closeAll();
      return opened;
    }, Background.THREADS);
  }

  /** Opens a connection before it is needed. */
  public void begin() {
    begun.set(opening());
  }

  /** Takes a connection back, for the next who waits for one. One that isn't reusable is closed. */
  void putBack(C connection, boolean isReusable) {
    if (isReusable) {
      for (CompletableFuture<C> next; (next = wanted.poll()) != null; ) {
        if (next.complete(connection)) return;
      }
    }
    if (isReusable && idle.size() < MOST_IDLE) {
      if (used.remove(connection)) idle.addFirst(connection);
      if (isClosed) closeAll();
    } else {
      closeOnce(connection);
    }
  }

  private void closeIdle() {
    for (C connection; (connection = idle.pollFirst()) != null; ) discard(connection);
  }

  private void closeOnce(C connection) {
    if (used.remove(connection)) discard(connection);
  }

  private void discard(C connection) {
    doubtful.remove(connection);
    close(connection);
  }

  private void closeAll() {
    closeIdle();
    used.forEach(this::closeOnce);
  }

  /** Closes all connections, for good. */
  public void close() {
    isClosed = true;
    closeAll();
  }
}
