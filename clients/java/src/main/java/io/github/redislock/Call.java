package io.github.redislock;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeoutException;

/**
 * A command that is sent again until the server replies or the time is over. The pauses between two
 * attempts grow from 50 ms to 1 s.
 */
final class Call {
  /** A reply, and the time before the command was sent, from which a lease counts. */
  record Reply(Object value, long sentNanos, boolean isRepeated) {
    /** Returns how many keys the server counted. */
    long count() {
      return value instanceof Long count ? count : 0;
    }
  }

  private final Locks locks;
  private final Link link;
  private final Command command;
  private final long deadlineNanos;
  private final Duration attempt;
  private final CompletableFuture<Reply> reply = new CompletableFuture<>();
  private final Backoff backoff = new Backoff();
  private int attempts;
  private volatile Throwable lastFault;

  private Call(Locks locks, Link link, Command command, Duration limit, Duration attempt) {
    this.locks = locks;
    this.link = link;
    this.command = command;
    this.attempt = attempt;
    deadlineNanos = System.nanoTime() + nanosOf(limit);
    lastFault = noReply(limit);
  }

  /**
   * Sends a command for at most {@code limit}. The future fails with {@link UnavailableException}, or
   * with the refusal of the server.
   */
  static CompletableFuture<Reply> send(Locks locks, Link link, Command command, Duration limit) {
    return send(locks, link, command, limit, locks.attempt);
  }

  /** Sends a command like the other method, with a longest time of one attempt. */
  static CompletableFuture<Reply> send(Locks locks, Link link, Command command, Duration limit, Duration attempt) {
    return begin(locks, link, command, limit, attempt, CompletableFuture.completedFuture(null)).reply;
  }

  /** Sends a command like {@link #send} after the end of another one, and returns the call with its latest fault. */
  static Call begin(
      Locks locks, Link link, Command command, Duration limit, Duration attempt, CompletableFuture<?> before) {
    Call call = new Call(locks, link, command, limit, attempt);
    locks.endWithClose(call.reply);
    ScheduledFuture<?> end = locks.after(nanosOf(limit), () -> call.reply.completeExceptionally(Fault.outage(call.lastFault)));
    call.reply.whenComplete((reply, error) -> end.cancel(false));
    before.whenComplete((done, error) -> call.attempt());
    return call;
  }

  CompletableFuture<Reply> reply() {
    return reply;
  }

  Throwable lastFault() {
    return lastFault;
  }

  static TimeoutException noReply(Duration limit) {
    return new TimeoutException("no reply within " + limit.toMillis() + " ms");
  }

  /** Returns the nanoseconds of a time, at most 100 years. */
  static long nanosOf(Duration time) {
    return time.compareTo(Duration.ofDays(36_500)) > 0 ? Duration.ofDays(36_500).toNanos() : time.toNanos();
  }

  private void attempt() {
    long now = System.nanoTime();
    if (reply.isDone()) return;
    attempts++;
    Duration left = Duration.ofNanos(Math.max(deadlineNanos - now, 1));
    Duration limit = left.compareTo(attempt) < 0 ? left : attempt;
    CompletableFuture<Object> sent = link.send(command, limit);
    sent.whenComplete((value, error) -> {
      if (error == null) reply.complete(new Reply(value, now, attempts > 1));
      else failed(error);
    });
    reply.whenComplete((value, error) -> sent.cancel(true));
  }

  private void failed(Throwable error) {
    if (reply.isDone()) return;
    if (!Fault.isOutage(error)) {
      reply.completeExceptionally(Fault.refusal(error));
      return;
    }
    lastFault = error;
    locks.after(backoff.nextNanos(), this::attempt);
  }
}
