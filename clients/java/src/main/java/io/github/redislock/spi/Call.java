package io.github.redislock.spi;

import java.io.IOException;
import java.nio.channels.spi.AbstractInterruptibleChannel;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** The commands of one call of the program, and the waiting of its thread. */
public final class Call {
  private final boolean isInterruptible;
  private final @Nullable Tie tie;
  private boolean isInterrupted;
  private int unanswered;
  private String server = "";

  private Call(boolean isInterruptible, @Nullable Tie tie) {
    this.isInterruptible = isInterruptible;
    this.tie = tie;
  }

  /** The steps of a call. */
  @FunctionalInterface
  public interface Steps<T extends @Nullable Object> {
    /** Executes the steps. */
    T run(Call call) throws InterruptedException;
  }

  /** Executes a call that an interrupt ends. */
  public static <T extends @Nullable Object> T interruptibly(Steps<T> steps)
      throws InterruptedException {
    if (Thread.interrupted()) throw new InterruptedException();
    return steps.run(new Call(true, null));
  }

  /** Executes a call that ignores interrupts. Its thread is interrupted again afterwards. */
  public static <T extends @Nullable Object> T uninterruptibly(Steps<T> steps) {
    return uninterruptibly(null, steps);
  }

  /** Executes such a call on the connections of a tie. */
  public static <T extends @Nullable Object> T uninterruptibly(@Nullable Tie tie, Steps<T> steps) {
    Call call = new Call(false, tie);
    call.isInterrupted = Thread.interrupted();
    try {
      return steps.run(call);
    } catch (InterruptedException impossible) {
      throw new AssertionError(impossible);
    } finally {
      if (call.isInterrupted) Thread.currentThread().interrupt();
    }
  }

  /** Returns a call of the same thread on the connections of a tie. */
  public Call on(Tie tie) {
    return new Call(isInterruptible, tie);
  }

  /** Returns the connections that the commands of this call must use, or null. */
  public @Nullable Tie tie() {
    return tie;
  }

  /** Returns the server of the latest command, in words. */
  public String server() {
    return server;
  }

  /** Notes the server of a command. */
  public void asks(String name) {
    server = name;
  }

  /** Notes that a command is sent. */
  public void sends() {
    unanswered++;
  }

  /** Notes that a command got its reply. */
  public void answered() {
    unanswered--;
  }

  /** Returns the number of commands that got no reply, and may still arrive. */
  public int unanswered() {
    return unanswered;
  }

  /**
   * Waits for a result. Throws {@link OutageException} if the time is over first, and what {@code
   * failure} makes of the cause if the future failed.
   */
  public <T extends @Nullable Object> T await(
      Future<T> future, long until, UnaryOperator<Throwable> failure) throws InterruptedException {
    while (true) {
      try {
        return future.get(Math.max(until - Clock.now(), 0), TimeUnit.NANOSECONDS);
      } catch (InterruptedException interrupt) {
        note(interrupt);
      } catch (ExecutionException failed) {
        throw Pool.unchecked(failure.apply(failed.getCause()));
      } catch (TimeoutException late) {
        throw OutageException.late(late);
      }
    }
  }

  /** Waits for a permit. Returns false if there is none until the time. */
  public boolean await(Semaphore permits, long until) throws InterruptedException {
    while (true) {
      try {
        return permits.tryAcquire(Math.max(until - Clock.now(), 0), TimeUnit.NANOSECONDS);
      } catch (InterruptedException interrupt) {
        note(interrupt);
      }
    }
  }

  /** Sleeps until a time. */
  public void sleep(long until) throws InterruptedException {
    for (long left; (left = until - Clock.now()) > 0; ) {
      try {
        TimeUnit.NANOSECONDS.sleep(left);
      } catch (InterruptedException interrupt) {
        note(interrupt);
      }
    }
  }

  /** Reads from a connection. An interrupt that ends this call closes the connection. */
  public <T extends @Nullable Object> T read(Runnable close, Supplier<T> read)
      throws InterruptedException {
    return isInterruptible ? new Interruptible(close).read(read) : read.get();
  }

  private void note(InterruptedException interrupt) throws InterruptedException {
    if (isInterruptible) throw interrupt;
    isInterrupted = true;
  }

  /** A connection that an interrupt closes, because nothing else ends a read of a socket. */
  private static final class Interruptible extends AbstractInterruptibleChannel {
    private final Runnable close;

    Interruptible(Runnable close) {
      this.close = close;
    }

    @Override
    protected void implCloseChannel() {
      close.run();
    }

    <T extends @Nullable Object> T read(Supplier<T> read) throws InterruptedException {
      boolean isRead = false;
      begin();
      try {
        T result = read.get();
        isRead = true;
        return result;
      } finally {
        ended(isRead);
      }
    }

    @SuppressWarnings("finally") // The interrupt is the cause of the failure of the read.
    private void ended(boolean isRead) throws InterruptedException {
      try {
        end(isRead);
      } catch (IOException interrupt) {
        Thread.interrupted();
        throw new InterruptedException();
      }
    }
  }
}
