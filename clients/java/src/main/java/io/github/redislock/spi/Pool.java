package io.github.redislock.spi;

import java.util.Deque;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * Connections of a Redis client to one server, each for one command at a time. They have the
 * settings of the program's client and are apart from its own ones.
 *
 * @param <C> the client's type of connections
 */
public abstract class Pool<C> {
  /** The time without a reply after which a connection counts as dead. */
  public static final long SILENCE_NANOS = TimeUnit.MILLISECONDS.toNanos(500);

  /** The most unused connections that stay open. */
  private static final int MOST_IDLE = 32;

  private final Deque<C> idle = new ConcurrentLinkedDeque<>();
  /** The connections that a command uses, except those of ties, which only their ties close. */
  private final Set<C> used = ConcurrentHashMap.newKeySet();
  private volatile boolean isClosed;

  /** Opens a connection, in a thread of the library. */
  protected abstract C open() throws Exception;

  /** Returns true if a connection may be used. */
  protected abstract boolean isOpen(C connection);

  /** Closes a connection. */
  protected abstract void close(C connection);

  /** Returns the {@link ServerError} or {@link OutageException} of an error, or the error. */
  protected abstract Throwable failure(Throwable error);

  /** Called after a connection failed on which a call sent a command at a time. */
  protected void failed(Call call, long sentAt) {
    closeIdle();
  }

  /** A command and its reply on a connection. */
  @FunctionalInterface
  public interface Exchange<C> {
    /** Sends the command, and returns the reply. */
    @Nullable Object run(C connection) throws InterruptedException;
  }

  /** Sends a command on a connection of the call's tie, or of this pool. */
  public @Nullable Object exchange(Command command, Call call, long until, Exchange<C> exchange)
      throws InterruptedException {
    Tie tie = call.tie();
    C connection = tie == null ? null : tie.latest(this);
    if (connection == null) connection = taken(call, until);
    boolean isClean = false;
    long began = Clock.now();
    call.sends();
    try {
      Object reply = exchange.run(connection);
      call.answered();
      isClean = true;
      return reply;
    } catch (RuntimeException | Error error) {
      Throwable failure = failure(error);
      isClean = failure instanceof ServerError reply && !reply.isOfReplica();
      if (failure instanceof ServerError) call.answered();
      // A connection isn't dead because a short limit is over.
      long silence = Clock.now() - began - command.blockNanos();
      boolean isLate = failure instanceof OutageException outage && outage.isLate();
      if (!isClean && (!isLate || silence >= SILENCE_NANOS)) failed(call, began);
      throw unchecked(failure);
    } finally {
      if (tie == null) putBack(connection, isClean);
      else tie.keep(this, connection, isClean);
    }
  }

  private C taken(Call call, long until) throws InterruptedException {
    if (isClosed) throw OutageException.closed();
    if (until <= Clock.now()) throw OutageException.late(null);
    for (C connection; (connection = idle.pollFirst()) != null; close(connection)) {
      if (isOpen(connection)) return inUse(connection, call);
    }
    return inUse(opened(call, until), call);
  }

  private C inUse(C connection, Call call) {
    if (call.tie() == null) used.add(connection);
    if (isClosed) close(connection);
    return connection;
  }

  /**
   * Opens a connection in another thread, because DNS, Sentinels and a handshake have no common
   * limit. A connection that comes too late goes to the pool.
   */
  private C opened(Call call, long until) throws InterruptedException {
    CompletableFuture<C> opening = new CompletableFuture<>();
    Background.run(() -> {
      try {
        C connection = open();
        if (!opening.complete(connection)) putBack(connection, true);
      } catch (Throwable error) {
        opening.completeExceptionally(error);
      }
    });
    boolean isWanted = false;
    try {
      C connection = call.await(opening, until, this::failure);
      isWanted = true;
      return connection;
    } finally {
      if (!isWanted && !opening.cancel(false)) opening.thenAccept(late -> putBack(late, true));
    }
  }

  /** Takes a connection back. One that isn't reusable is closed. */
  void putBack(C connection, boolean isReusable) {
    used.remove(connection);
    if (!isReusable || idle.size() >= MOST_IDLE) {
      close(connection);
      return;
    }
    idle.addFirst(connection);
    if (isClosed) closeIdle();
  }

  /** Closes the unused connections, which may have died with one that failed. */
  public void closeIdle() {
    for (C connection; (connection = idle.pollFirst()) != null; ) close(connection);
  }

  /** Closes all connections, for good. */
  public void close() {
    isClosed = true;
    restart();
  }

  /** Closes all connections, except those of ties. The next commands open others. */
  public void restart() {
    closeIdle();
    used.forEach(this::close);
  }

  /** Returns an error to throw. */
  public static RuntimeException unchecked(Throwable error) {
    if (error instanceof Error fatal) throw fatal;
    return error instanceof RuntimeException known ? known : new IllegalStateException(error);
  }
}
