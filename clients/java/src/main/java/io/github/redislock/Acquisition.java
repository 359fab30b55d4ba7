package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import io.github.redislock.spi.ServerError;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * One acquire, from its place in the line of its lock object to the grant. It repeats its command until
 * the server grants the lock, refuses it, or the time is over. What it may have left behind at the
 * server is then cancelled and released in the background.
 */
final class Acquisition {
  /** The longest time in which the server confirms the end of a wait. */
  private static final long CONFIRM_NANOS = TimeUnit.MILLISECONDS.toNanos(200);
  /** The longest time without a reply during a wait. */
  private static final long SILENT_NANOS = TimeUnit.SECONDS.toNanos(3);
  private static final SecureRandom RANDOM = new SecureRandom();

  /** The grant, or null if somebody else has the lock. */
  final CompletableFuture<Grant> result = new CompletableFuture<>();
  private final RedisLock lock;
  private final Locks locks;
  private final LockOptions options;
  private final Thread owner;
  private final boolean waits;
  private final boolean hasLimit;
  private final long begunNanos = System.nanoTime();
  private final long deadlineNanos;
  private final byte[] token;
  private final Backoff backoff = new Backoff();

  /** The listener of LOCK.WAIT, which has no reply before its end. */
  private final Link.Progress progress = new Link.Progress() {
    @Override
    public void sending() {
      blockSentNanos = System.nanoTime();
    }

    @Override
    public void alive() {
      outageOver();
    }
  };

  private Link.Turn turn;
  private CompletableFuture<Object> asked;
  private ScheduledFuture<?> next;
  private ScheduledFuture<?> end;
  private Link own;
  private Throwable outage;
  private boolean isOutageTold;
  private boolean isQueued;
  /** True if the turn was announced while a request, which may be older, had no reply yet. */
  private boolean isAnnounced;
  private boolean isSent;
  /** True once the server has refused a request, which leaves nothing. */
  private boolean isRefused;
  /** True once the end of the wait is being confirmed: no request may follow the CANCEL. */
  private boolean isEnding;
  private boolean isOver;
  /** True from the first grant, which may be over since then. */
  private boolean isGranted;
  /** True while a grant is confirmed, which may need a session or replicas yet. */
  private boolean isConfirming;
  /** The time before the latest LOCK.WAIT was sent, from which its lease counts. */
  private volatile long blockSentNanos;

  /**
   * Makes an acquire.
   *
   * @param limit the time to wait: zero for one try, null for no limit
   * @param owner the thread that will own the lock, or null
   */
  Acquisition(RedisLock lock, Duration limit, Thread owner) {
    this.lock = lock;
    this.locks = lock.locks;
    this.options = lock.options;
    this.owner = owner;
    waits = limit == null || !limit.isZero();
    hasLimit = limit != null;
    // The server's own limit for replicas begins a little later than this one.
    long moreNanos = options.replicas > 0 && !waits ? CONFIRM_NANOS : 0;
    deadlineNanos = begunNanos + Call.nanosOf(waits && hasLimit ? limit : locks.commandTimeout) + moreNanos;
    token = options.token != null ? options.token : newToken();
  }

  private static byte[] newToken() {
    byte[] bits = new byte[16];
    RANDOM.nextBytes(bits);
    return HexFormat.of().formatHex(bits).getBytes(UTF_8);
  }

  /** Begins to count the time; the lock object may still be held by somebody else in this process. */
  synchronized void enqueued() {
    locks.endWithClose(result);
    if (hasLimit && !isOver) end = locks.after(deadlineNanos - System.nanoTime(), this::timeOver);
  }

  /** Asks the server: nobody else of this process is before it. */
  void start() {
    try {
      begin();
    } catch (RuntimeException fault) {
      fail(Fault.ending(fault), Observer.Outcome.FAILED);
    }
  }

  private void begin() {
    boolean isLate;
    synchronized (this) {
      if (isOver) return;
      isLate = isEnding;
      if (!isLate && waits) turn = locks.link.turn(lock.keys.get(0), this::askNow).orElse(null);
    }
    if (isLate) {
      confirmRefusal(Duration.ofNanos(CONFIRM_NANOS));
      return;
    }
    if (turn != null) turn.listening().exceptionally(error -> refusedListening(error));
    ask();
  }

  /**
   * Ends a try that isn't the first in the line of its lock object, if the server is there. One that only has
   * to wait until the token is clean goes on.
   */
  void tryBehindOthers() {
    if (waits || !isBehindOthers() || lock.isNext(this)) return;
    if (lock.isTaken()) notAcquired();
    else confirmRefusal(locks.commandTimeout);
  }

  private synchronized boolean isBehindOthers() {
    return !isSent && !isOver;
  }

  /** Says "not acquired" on behalf of those before it, once the server has shown that it is there. */
  private void confirmRefusal(Duration limit) {
    Command check = Command.of("CHECK", lock.keys.subList(0, 1), token);
    Call.send(locks, locks.link, check, limit).whenComplete((reply, error) -> {
      if (!isBehindOthers()) return;
      if (error == null) notAcquired();
      else fail(Fault.ending(error), Observer.Outcome.FAILED);
    });
  }

  /** Ends the acquire without a grant. */
  void cancel() {
    fail(new CancellationException("the acquire was cancelled"), Observer.Outcome.CANCELLED);
  }

  private Void refusedListening(Throwable error) {
    if (Fault.unwrapped(error) instanceof ServerError && !Fault.isOutage(error)) {
      fail(Fault.ending(error), Observer.Outcome.FAILED);
    }
    return null;
  }

  private void askNow() {
    synchronized (this) {
      if (isOver || isEnding) return;
      isAnnounced = asked != null && !asked.isDone();
      if (isAnnounced) return;
      if (next != null) next.cancel(false);
    }
    ask();
  }

  private void ask() {
    long now = System.nanoTime();
    CompletableFuture<Object> reply;
    synchronized (this) {
      if (isOver || isEnding) return;
      isSent = true;
      asked = reply = sent(Duration.ofNanos(Math.max(deadlineNanos - now, 1)));
    }
    reply.whenComplete((value, error) -> {
      boolean isBlock = turn == null && waits;
      if (error == null) replied(value, isBlock ? blockSentNanos : now);
      else failed(error);
    });
  }

  private CompletableFuture<Object> sent(Duration left) {
    Object[] lease = {token, "PX", options.firstLease().toMillis(), "HOLDS", 1};
    Duration attempt = hasLimit && left.compareTo(locks.attempt) < 0 ? left : locks.attempt;
    if (!waits) return locks.link.send(Command.of("ACQUIRE", lock.keys, lease).with(options.mode()), attempt);
    List<byte[]> keep = List.of("KEEP".getBytes(UTF_8), ("" + options.keep.toMillis()).getBytes(UTF_8));
    if (turn != null) {
      Command queue = Command.of("QUEUE", lock.keys, lease).with(options.mode()).with(keep).with(turn.words());
      return locks.link.send(queue, locks.attempt);
    }
    long blockMs = hasLimit ? Math.max(left.toMillis(), 1) : 0;
    List<byte[]> block = List.of("BLOCK".getBytes(UTF_8), ("" + blockMs).getBytes(UTF_8));
    Command wait = Command.of("WAIT", lock.keys, lease).with(options.mode()).with(keep).with(block);
    Duration limit = hasLimit ? left.plusNanos(CONFIRM_NANOS) : Duration.ZERO;
    blockSentNanos = System.nanoTime();
    return locks.link.block(wait, limit, attempt.plusNanos(CONFIRM_NANOS), progress);
  }

  private void replied(Object reply, long sentNanos) {
    if (reply instanceof List<?> granted) {
      granted(((Long) granted.get(1)), sentNanos);
      return;
    }
    synchronized (this) {
      if (isOver) return;
      outage = null;
      outageOver();
      if (reply instanceof Long) {
        isQueued = true;
        isConfirming = false;
        askAfter(isAnnounced ? 0 : askNanos());
        isAnnounced = false;
        return;
      }
    }
    // No grant: one try, or the end of BLOCK, beyond which KEEP keeps the place.
    if (!waits) notAcquired();
    else if (hasLimit) leave();
    else ask();
  }

  /** Cancels the place, and says "not acquired". */
  private void leave() {
    Command cancel = Command.of("CANCEL", lock.keys.subList(0, 1), token);
    locks.link.send(cancel, Duration.ofNanos(CONFIRM_NANOS)).whenComplete((reply, error) -> notAcquired());
  }

  /** Notes that the server is there: the next outage is another one. */
  private synchronized void outageOver() {
    isOutageTold = false;
    backoff.reset();
  }

  private void askAfter(long nanos) {
    // An announcement may have made another request before this reply was read.
    if (next != null) next.cancel(false);
    next = locks.after(nanos, this::ask);
  }

  /** Returns the time between two requests: an unclaimed grant ends with KEEP or with a shorter lease. */
  private long askNanos() {
    long untilTaken = Math.min(Call.nanosOf(options.keep), Call.nanosOf(options.firstLease())) / 3;
    return Math.min(untilTaken, SILENT_NANOS);
  }

  private void granted(long fence, long sentNanos) {
    // The grant may have expired while this process stood still: the same command asks again.
    long ageNanos = System.nanoTime() - sentNanos;
    synchronized (this) {
      isGranted = isConfirming = true;
    }
    boolean isOld = (turn != null || !waits) && ageNanos > Call.nanosOf(options.firstLease()) / 3;
    if (isOld) {
      ask();
      return;
    }
    if (options.session || options.replicas > 0) confirm(fence);
    else if (turn == null && waits) confirmLate(fence, ageNanos, sentNanos);
    else accept(fence, sentNanos, locks.link);
  }

  /** Takes a grant of LOCK.WAIT, whose age is unknown: LOCK.EXTEND dates its lease. */
  private void confirmLate(long fence, long ageNanos, long sentNanos) {
    if (ageNanos < Call.nanosOf(options.firstLease()) / 10) {
      accept(fence, sentNanos, locks.link);
      return;
    }
    extend(fence, locks.link, List.of());
  }

  private void confirm(long fence) {
    synchronized (this) {
      if (isOver) return;
      if (own == null) own = locks.own();
    }
    List<byte[]> words = new ArrayList<>();
    if (options.session) words.add("SESSION".getBytes(UTF_8));
    if (options.replicas > 0) {
      long lateNanos = waits ? 0 : CONFIRM_NANOS;
      Duration left = Duration.ofNanos(Math.max(deadlineNanos - lateNanos - System.nanoTime(), 1_000_000));
      boolean isShort = hasLimit && left.compareTo(locks.commandTimeout) < 0;
      long withinMs = (isShort ? left : locks.commandTimeout).toMillis();
      String[] replicas = {"REPLICAS", "" + options.replicas, "WITHIN", "" + withinMs};
      for (String word : replicas) words.add(word.getBytes(UTF_8));
    }
    extend(fence, own, words);
  }

  private void extend(long fence, Link link, List<byte[]> words) {
    Command command = Command.of("EXTEND", lock.keys, token, "PX", options.firstLease().toMillis()).with(words);
    Duration limit = locks.commandTimeout.plusNanos(options.replicas > 0 ? CONFIRM_NANOS : 0);
    Duration attempt = options.replicas > 0 ? limit : locks.attempt;
    Call.send(locks, link, command, limit, attempt).whenComplete((reply, error) -> {
      if (error != null && Fault.unwrapped(error) instanceof UnavailableException) failed(error);
      else if (error != null) fail(Fault.ending(error), Observer.Outcome.FAILED);
      else if (reply.count() == lock.keys.size() && !isPast(reply.sentNanos())) accept(fence, reply.sentNanos(), link);
      else ask();
    });
  }

  /** Returns true if a lease that counts from this time is over. */
  private boolean isPast(long sentNanos) {
    return System.nanoTime() - sentNanos >= Call.nanosOf(options.firstLease());
  }

  private void accept(long fence, long sentNanos, Link link) {
    Grant grant;
    synchronized (this) {
      // The renewal begins with the grant, so a cancel comes before both or has no effect.
      if (!over()) return;
      grant = new Grant(lock, token, link, owner, fence, sentNanos);
      if (link == own) own = null;
    }
    finish(grant, Observer.Outcome.GRANTED);
  }

  private void failed(Throwable error) {
    if (!Fault.isOutage(error) && !(Fault.unwrapped(error) instanceof UnavailableException)) {
      synchronized (this) {
        isRefused = true;
      }
      fail(Fault.ending(error), Observer.Outcome.FAILED);
      return;
    }
    boolean isNews;
    synchronized (this) {
      if (isOver) return;
      outage = error;
      isNews = !hasLimit && !isOutageTold;
      if (isNews) isOutageTold = true;
      askAfter(backoff.nextNanos());
    }
    if (isNews) locks.tellUnavailable(Fault.outage(error));
  }

  private void timeOver() {
    Throwable last;
    boolean isWaitingHere;
    boolean mayBeGranted;
    synchronized (this) {
      if (isOver) return;
      isEnding = true;
      isWaitingHere = !isSent;
      mayBeGranted = isConfirming;
      last = isBlocked() ? null : outage;
    }
    if (isWaitingHere && lock.isTaken()) notAcquired();
    // Only a clean-up or a release of the same token is before it.
    else if (isWaitingHere && lock.isNext(this)) failLater();
    else if (isWaitingHere) confirmRefusal(Duration.ofNanos(CONFIRM_NANOS));
    else if (last != null) fail(Fault.outage(last), Observer.Outcome.FAILED);
    else if (!waits) fail(Fault.outage(Call.noReply(locks.commandTimeout)), Observer.Outcome.FAILED);
    else if (mayBeGranted) failLater();
    else confirmEnd();
  }

  /** Returns true while a LOCK.WAIT is under way, whose reply says if an earlier outage is over. */
  private boolean isBlocked() {
    return waits && turn == null && asked != null && !asked.isDone();
  }

  /** Says "not acquired" only if a server confirms the end of the wait. */
  private void confirmEnd() {
    failLater();
    // The reply of LOCK.WAIT comes by itself.
    if (turn == null) return;
    Command cancel = Command.of("CANCEL", lock.keys.subList(0, 1), token);
    locks.link.send(cancel, Duration.ofNanos(CONFIRM_NANOS)).whenComplete((reply, error) -> {
      if (error != null) fail(Fault.ending(error), Observer.Outcome.FAILED);
      else if (reply instanceof Long one && one == 1 && isQueued) notAcquired();
      // Granted at the last moment, or without a place: what is there is given back.
      else fail(null, Observer.Outcome.NOT_ACQUIRED);
    });
  }

  private void failLater() {
    Throwable silence = Call.noReply(Duration.ofNanos(CONFIRM_NANOS));
    locks.after(CONFIRM_NANOS, () -> fail(Fault.outage(lastFaultOr(silence)), Observer.Outcome.FAILED));
  }

  private synchronized Throwable lastFaultOr(Throwable silence) {
    return outage == null ? silence : outage;
  }

  private void notAcquired() {
    if (over()) finish(null, Observer.Outcome.NOT_ACQUIRED);
  }

  private void finish(Grant grant, Observer.Outcome outcome) {
    settle(outcome);
    if (grant != null) locks.holds(lock, grant);
    lock.settled(this, grant);
    result.complete(grant);
  }

  /** Ends the acquire with an error, or without one as not acquired, and cleans up behind it. */
  private void fail(RuntimeException error, Observer.Outcome outcome) {
    if (!over()) return;
    settle(outcome);
    CompletableFuture<?> cleaned = mayBeKnown() ? cleanUp() : CompletableFuture.completedFuture(null);
    cleaned.whenComplete((done, late) -> {
      // The caller has been told of an outage.
      if (late != null && !(error instanceof UnavailableException)) locks.tellUnavailable(Fault.inBackground(late));
    });
    // A token that the program chose must be clean before it is used again.
    if (options.token == null) lock.settled(this, null);
    else cleaned.whenComplete((done, late) -> lock.settled(this, null));
    if (error == null) result.complete(null);
    else result.completeExceptionally(error);
  }

  /** Returns true if the token may be in the queue or hold the lock. */
  private synchronized boolean mayBeKnown() {
    return isSent && !(isRefused && !isQueued && !isGranted && outage == null);
  }

  synchronized boolean isOver() {
    return isOver;
  }

  private synchronized boolean over() {
    if (isOver) return false;
    isOver = true;
    return true;
  }

  private void settle(Observer.Outcome outcome) {
    CompletableFuture<Object> open;
    synchronized (this) {
      if (end != null) end.cancel(false);
      if (next != null) next.cancel(false);
      open = asked;
    }
    if (open != null) open.cancel(true);
    if (turn != null) turn.close();
    if (own != null) locks.closeOwn(own);
    Duration took = Duration.ofNanos(System.nanoTime() - begunNanos);
    // LOCK.WAIT doesn't say whether it waited for its grant.
    boolean isLong = outcome != Observer.Outcome.GRANTED || took.toMillis() > 1;
    boolean hasWaited = isQueued || outage != null || turn == null && waits && isLong;
    if (hasWaited) locks.tellWaited(lock, took, outcome);
  }

  /** Cancels the place first, so that no grant can follow the release. A refused cancel doesn't prevent that. */
  private CompletableFuture<?> cleanUp() {
    Duration over = options.keep.compareTo(options.lease) > 0 ? options.keep : options.lease;
    Command cancel = Command.of("CANCEL", lock.keys.subList(0, 1), token);
    Command release = Command.of("RELEASE", lock.keys, token, "ALL");
    CompletableFuture<Call.Reply> cancelled = Call.send(locks, locks.link, cancel, over);
    CompletableFuture<Call.Reply> released = cancelled
        .exceptionallyCompose(error -> Fault.unwrapped(error) instanceof UnavailableException
            ? cancelled
            : CompletableFuture.completedFuture(null))
        .thenCompose(done -> Call.send(locks, locks.link, release, over));
    return CompletableFuture.allOf(cancelled, released);
  }
}
