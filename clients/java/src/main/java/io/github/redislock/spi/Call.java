package io.github.redislock.spi;

import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/** The commands of one call of the program, and the waiting of its thread. */
public final class Call {
  private final boolean isInterruptible;
  private @Nullable Consumer<Runnable> borrower;
  private boolean isInterrupted;
  private int unanswered;
  private long sentAt;
  private String server = "";

  private Call(boolean isInterruptible) {
    this.isInterruptible = isInterruptible;
  }

  /** The steps of a call. */
  @FunctionalInterface
  public interface Steps<T extends @Nullable Object> {
    /** Executes the steps. */
    T run(Call call) throws InterruptedException;
  }

  /** A wait of at most some nanoseconds. */
  @FunctionalInterface
  public interface Wait<T extends @Nullable Object> {
    /** Waits. */
    T within(long nanos) throws InterruptedException;
  }

  /** Executes a call that an interrupt ends. */
  public static <T extends @Nullable Object> T interruptibly(Steps<T> steps)
      throws InterruptedException {
    if (Thread.interrupted()) throw new InterruptedException();
    return steps.run(new Call(true));
  }

  /** Executes a call that ignores interrupts. Its thread is interrupted again afterwards. */
  public static <T extends @Nullable Object> T uninterruptibly(Steps<T> steps) {
    Call call = new Call(false);
    call.isInterrupted = Thread.interrupted();
    try {
      return steps.run(call);
    } catch (InterruptedException impossible) {
      throw new AssertionError(impossible);
    } finally {
      if (call.isInterrupted) Thread.currentThread().interrupt();
    }
  }

  /** Returns true if an interrupt ends this call. */
  public boolean isInterruptible() {
    return isInterruptible;
  }

  /** Lends the connection of the next commands to a grant, which gets what closes it. */
  public void lendTo(@Nullable Consumer<Runnable> borrower) {
    this.borrower = borrower;
  }

  @Nullable Consumer<Runnable> borrower() {
    return borrower;
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
    sentAt = Clock.now();
  }

  /** Notes how often a client repeated the latest command. The lease may count from the first. */
  public void repeated(int times) {
    unanswered += times;
  }

  /** Notes that a command got its reply. */
  public void answered() {
    unanswered--;
  }

  /** Returns the time at which the latest command was sent. */
  public long sentAt() {
    return sentAt;
  }

  /** Returns the number of commands that got no reply, and may still arrive. */
  public int unanswered() {
    return unanswered;
  }

  /**
   * Waits for a result. Throws {@link Fault} if the time is over first, and {@link
   * CompletionException} if the future failed.
   */
  public <T extends @Nullable Object> T await(Future<T> future, long until)
      throws InterruptedException {
    return await(until, nanos -> {
      try {
        return future.get(nanos, TimeUnit.NANOSECONDS);
      } catch (ExecutionException failed) {
        throw new CompletionException(failed.getCause());
      } catch (TimeoutException late) {
        throw Fault.late(late);
      }
    });
  }

  /** Sleeps until a time. */
  public void sleep(long until) throws InterruptedException {
    await(until, nanos -> {
      TimeUnit.NANOSECONDS.sleep(nanos);
      return null;
    });
  }

  /** Waits until a time. */
  public <T extends @Nullable Object> T await(long until, Wait<T> wait)
      throws InterruptedException {
    while (true) {
      try {
        return wait.within(Math.max(until - Clock.now(), 0));
      } catch (InterruptedException interrupt) {
        if (isInterruptible) throw interrupt;
        isInterrupted = true;
      }
    }
  }
}
