package io.github.redislock;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.redislock.spi.Command;
import io.github.redislock.spi.Link;
import java.lang.ref.Cleaner;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;

/**
 * One grant and its lease by the local monotonic clock, until it is released or lost. It doesn't keep
 * the lock object alive: a forgotten object is released.
 */
final class Grant {
  private static final Cleaner CLEANER = Cleaner.create();

  private enum Phase {
    HELD,
    RELEASED,
    LOST
  }

  final long fence;
  private final Locks locks;
  private final WeakReference<RedisLock> lock;
  /** The lock object of a hold, which hears of a loss as long as the hold is there; null for a thread's. */
  private final RedisLock lockOfHold;
  private final LockOptions options;
  private final List<byte[]> keys;
  private final byte[] token;
  /** The connections of a session or of held-back replies, else those of all. */
  private final Link link;
  /** The thread that owns the lock, or null if a {@link Hold} does. */
  private final Thread owner;
  private final long grantedNanos;
  private final long lastEndNanos;

  private Phase phase = Phase.HELD;
  private int holds = 1;
  private Duration lease;
  private long untilNanos;
  private ScheduledFuture<?> due;
  /** The latest command that sets the lease, of which one follows the other. */
  private CompletableFuture<Void> prolonging = CompletableFuture.completedFuture(null);
  /** The latest ACQUIRE for another hold or mode, including the release if its grant came too late. */
  private CompletableFuture<?> again = CompletableFuture.completedFuture(null);
  private boolean isOutageTold;
  private Cleaner.Cleanable forgotten;

  Grant(RedisLock lock, byte[] token, Link link, Thread owner, long fence, long sentNanos) {
    this.fence = fence;
    this.locks = lock.locks;
    this.lock = new WeakReference<>(lock);
    lockOfHold = owner == null ? lock : null;
    this.options = lock.options;
    this.keys = lock.keys;
    this.token = token;
    this.link = link;
    this.owner = owner;
    grantedNanos = System.nanoTime();
    lastEndNanos = sentNanos + Call.nanosOf(options.lastRenewal());
    renewed(sentNanos, options.firstLease(), options.lease);
  }

  /** Makes the grant of another lock object that goes on with the token, fence and times of this one. */
  private Grant(Grant before, RedisLock heir, int holds, long sentNanos, Duration set) {
    fence = before.fence;
    locks = before.locks;
    lock = new WeakReference<>(heir);
    lockOfHold = null;
    options = heir.options;
    keys = before.keys;
    token = before.token;
    link = before.link;
    owner = before.owner;
    grantedNanos = before.grantedNanos;
    lastEndNanos = before.lastEndNanos;
    this.holds = holds;
    renewed(sentNanos, set, before.lease());
  }

  /** Throws if the grant was released, and not lost. */
  void checkNotReleased() {
    if (isReleased()) throw new IllegalMonitorStateException("released before: " + name());
  }

  private synchronized boolean isReleased() {
    return phase == Phase.RELEASED;
  }

  /** Returns true if the grant was released, or is known to be lost. */
  synchronized boolean isEnded() {
    return phase != Phase.HELD;
  }

  /** Releases the grant when this object, its holder, is collected. */
  void heldBy(Object holder) {
    forgotten = CLEANER.register(holder, this::abandon);
  }

  String name() {
    return nameOf(keys);
  }

  static String nameOf(List<byte[]> keys) {
    List<String> names = new ArrayList<>(keys.size());
    for (byte[] key : keys) names.add(new String(key, UTF_8));
    return String.join(", ", names);
  }

  String token() {
    return new String(token, UTF_8);
  }

  Thread owner() {
    return owner;
  }

  synchronized boolean isHeld() {
    return phase == Phase.HELD && System.nanoTime() - untilNanos < 0;
  }

  synchronized boolean isLost() {
    return phase == Phase.LOST || phase == Phase.HELD && System.nanoTime() - untilNanos >= 0;
  }

  synchronized Duration remaining() {
    return isHeld() ? Duration.ofNanos(untilNanos - System.nanoTime()) : Duration.ZERO;
  }

  synchronized int holds() {
    return holds;
  }

  /** Adds a hold of the owner. */
  CompletableFuture<Void> holdAgain() {
    return acquireAgain(holds() + 1, nextLease(), options, Phase.HELD).thenAccept(reply -> {
      if (reply == null) throw lostError();
    });
  }

  /**
   * Turns an exclusive grant into a shared one of another lock object, with the same fence. Returns nothing if
   * it was lost. After an outage both are released.
   */
  CompletableFuture<Optional<Grant>> convert(RedisLock heir, int holds) {
    if (!isHeld()) return release().thenApply(released -> Optional.empty());
    Duration next = nextLease();
    return acquireAgain(holds, next, heir.options, Phase.RELEASED).thenApply(reply -> {
      if (reply == null) return Optional.<Grant>empty();
      ended(CompletableFuture.completedFuture(null));
      return Optional.of(new Grant(this, heir, holds, reply.sentNanos(), next));
    }).whenComplete((shared, error) -> {
      if (error != null) releaseAll().exceptionally(outage -> null);
    });
  }

  /**
   * Acquires again, and sets the holds and the phase if the fence is the same. If the grant ended before the
   * reply, returns null and releases all holds, because the server may have granted the lock anew.
   */
  private CompletableFuture<Call.Reply> acquireAgain(int more, Duration set, LockOptions options, Phase next) {
    Command command = Command.of("ACQUIRE", keys, token, "PX", set.toMillis(), "HOLDS", more).with(options.mode());
    CompletableFuture<Void> clean = new CompletableFuture<>();
    synchronized (this) {
      if (phase != Phase.HELD) return CompletableFuture.completedFuture(null);
      again = clean;
    }
    CompletableFuture<Call.Reply> sent = Call.send(locks, locks.link, command, locks.commandTimeout);
    return sent.thenApply(reply -> isOfThis(reply, more, set, next) ? reply : null).whenComplete((reply, error) -> {
      if (reply != null || error != null && isHeld()) {
        clean.complete(null);
        return;
      }
      CompletableFuture<?> released = releaseAnyHolds();
      released.whenComplete((done, outage) -> clean.complete(null));
      if (!isReleased()) lose(() -> released);
    });
  }

  /** Notes the reply of {@link #acquireAgain}. Returns false if the reply is of another grant, or late. */
  private synchronized boolean isOfThis(Call.Reply reply, int more, Duration set, Phase next) {
    if (!(reply.value() instanceof List<?> granted && granted.get(1).equals(fence))) return false;
    renewed(reply.sentNanos(), set, lease);
    if (!isHeld()) return false;
    holds = more;
    phase = next;
    return true;
  }

  /** Sets the lease, also for later renewals. Returns false if the lock was lost. */
  CompletableFuture<Boolean> extend(Duration lease) {
    Duration whole = LockOptions.time("lease", lease, Duration.ofMillis(1));
    if (!isHeld()) return CompletableFuture.completedFuture(false);
    return prolong(() -> new Lease(whole, whole), locks.commandTimeout);
  }

  /** Takes one hold off. Returns false if the lock was lost. */
  CompletableFuture<Boolean> release() {
    int rest;
    synchronized (this) {
      if (holds == 1 || !isHeld()) rest = 0;
      else rest = --holds;
    }
    if (rest == 0) return releaseAll();
    Command command = Command.of("RELEASE", keys, token, "HOLDS", rest);
    return counted(Call.send(locks, link, command, locks.commandTimeout));
  }

  /**
   * Releases all holds. The caller waits for the command timeout at most; the command is repeated until
   * the lease is over.
   */
  CompletableFuture<Boolean> releaseAll() {
    return releaseAfter(Duration.ofNanos(Math.max(grantedNanos + Call.nanosOf(options.leastHold) - System.nanoTime(), 0)));
  }

  /** Releases all holds like {@link #releaseAll}, after a time for which the server keeps the lock. */
  CompletableFuture<Boolean> releaseAfter(Duration rest) {
    Duration left;
    synchronized (this) {
      if (phase == Phase.RELEASED) return CompletableFuture.completedFuture(true);
      left = remaining();
      if (!left.isZero()) phase = Phase.RELEASED;
    }
    if (left.isZero()) {
      expire();
      return CompletableFuture.completedFuture(false);
    }
    Call call = Call.begin(locks, link, lastCommand(rest), left, locks.attempt, before(rest));
    CompletableFuture<Boolean> released = counted(call.reply());
    ended(released);
    released.whenComplete((done, error) -> closeOwn());
    CompletableFuture<Boolean> told = released.copy();
    ScheduledFuture<?> end = locks.after(
        Call.nanosOf(locks.commandTimeout), () -> told.completeExceptionally(Fault.unreleased(call.lastFault())));
    told.whenComplete((done, error) -> end.cancel(false));
    return told;
  }

  /** Returns what the last command has to wait for: a renewal on another connection would undo its lease. */
  private synchronized CompletableFuture<?> before(Duration rest) {
    return rest.isZero() ? CompletableFuture.completedFuture(null) : prolonging;
  }

  /** Ends a guarded block: only a loss is thrown. */
  void close() {
    if (isReleased()) return;
    boolean wasHeld = true;
    try {
      wasHeld = Waits.uninterruptibly(releaseAll());
    } catch (LockException outage) {
      tellOnce(outage);
    }
    if (!wasHeld) throw lostError();
  }

  /** Releases a grant that nobody can release any more. */
  private void abandon() {
    if (isHeld()) releaseForNobody();
  }

  /** Releases all holds for which no caller waits: the observer hears of an outage. */
  void releaseForNobody() {
    releaseAll().whenComplete((released, outage) -> {
      if (outage != null) tellOnce(outage);
    });
  }

  LockLostException lostError() {
    return new LockLostException("lost while it was held: " + name(), null);
  }

  private Command lastCommand(Duration rest) {
    if (rest.isZero()) return Command.of("RELEASE", keys, token, "HOLDS", 0);
    Command stays = Command.of("EXTEND", keys, token, "PX", Math.max(rest.toMillis(), 1));
    return options.session ? stays.with(List.of("NOSESSION".getBytes(UTF_8))) : stays;
  }

  private synchronized Duration lease() {
    return lease;
  }

  /** Returns the lease to set now: it doesn't go beyond the longest hold. */
  private Duration nextLease() {
    // Rounded up, because the hold isn't to end before its time.
    long restMs = Math.max(Duration.ofNanos(lastEndNanos - System.nanoTime() + 999_999).toMillis(), 1);
    return Duration.ofMillis(Math.min(lease().toMillis(), restMs));
  }

  /** Notes that a command sent at this time has set the lease, and the lease of later renewals. */
  private synchronized void renewed(long sentNanos, Duration set, Duration later) {
    if (phase != Phase.HELD) return;
    lease = later;
    isOutageTold = false;
    untilNanos = sentNanos + Call.nanosOf(set);
    long pauseNanos = options.renews() ? Math.min(Call.nanosOf(set) / 3, lastEndNanos - System.nanoTime()) : 0;
    schedule(pauseNanos);
  }

  private synchronized void schedule(long pauseNanos) {
    if (due != null) due.cancel(false);
    if (phase != Phase.HELD) return;
    boolean isLast = !options.renews() || lastEndNanos - untilNanos < TimeUnit.MILLISECONDS.toNanos(1);
    long leftNanos = untilNanos - System.nanoTime();
    due = isLast || leftNanos <= pauseNanos
        ? locks.after(leftNanos, this::expire)
        : locks.after(pauseNanos, this::renew);
  }

  private void expire() {
    loseIfOver();
    schedule(0);
  }

  /** Notes the loss of a grant whose lease is over by the local clock. */
  void loseIfOver() {
    if (isLost()) lose();
  }

  private void renew() {
    if (owner != null && !owner.isAlive()) {
      synchronized (this) {
        due = locks.after(untilNanos - System.nanoTime(), this::expire);
      }
      return;
    }
    Duration left = remaining();
    if (left.isZero()) {
      lose();
      return;
    }
    Duration limit = left.compareTo(locks.commandTimeout) < 0 ? left : locks.commandTimeout;
    prolong(() -> new Lease(nextLease(), lease()), limit).whenComplete((held, error) -> {
      if (error == null) return;
      tellOnce(error);
      schedule(Call.nanosOf(limit) / 4);
    });
  }

  private void tellOnce(Throwable error) {
    synchronized (this) {
      if (isOutageTold) return;
      isOutageTold = true;
    }
    locks.tellUnavailable(Fault.inBackground(error));
  }

  /** A lease to set, and the lease of later renewals. */
  private record Lease(Duration set, Duration later) {}

  /** Sets the lease, which depends on the command before: on two connections one could overtake the other. */
  private CompletableFuture<Boolean> prolong(Supplier<Lease> next, Duration limit) {
    long endNanos = System.nanoTime() + Call.nanosOf(limit);
    CompletableFuture<Void> over = new CompletableFuture<>();
    CompletableFuture<Void> before;
    synchronized (this) {
      before = prolonging;
      prolonging = over;
    }
    CompletableFuture<Boolean> prolonged =
        before.thenCompose(done -> set(next.get(), Duration.ofNanos(endNanos - System.nanoTime())));
    prolonged.whenComplete((held, error) -> over.complete(null));
    return prolonged;
  }

  private CompletableFuture<Boolean> set(Lease next, Duration limit) {
    if (isEnded()) return CompletableFuture.completedFuture(false);
    if (limit.isNegative()) throw Fault.outage(new TimeoutException("no reply to the command before"));
    Command command = Command.of("EXTEND", keys, token, "PX", next.set.toMillis());
    Command tied = options.session ? command.with(List.of("SESSION".getBytes(UTF_8))) : command;
    return Call.send(locks, link, tied, limit).thenApply(reply -> {
      if (reply.count() == keys.size()) renewed(reply.sentNanos(), next.set, next.later);
      // A release may have overtaken it.
      else if (!isReleased()) lose();
      return isHeld();
    });
  }

  private CompletableFuture<Boolean> counted(CompletableFuture<Call.Reply> replied) {
    return replied.thenApply(reply -> {
      // If a reply was lost, the command before may have released the lock.
      if (reply.count() == keys.size() || reply.isRepeated() && !options.session) return true;
      lose();
      return false;
    });
  }

  private void lose() {
    // Some of the keys may still be held.
    lose(keys.size() > 1 ? this::releaseAnyHolds : () -> CompletableFuture.completedFuture(null));
  }

  /** Releases whatever the token holds at the server. */
  private CompletableFuture<?> releaseAnyHolds() {
    Command release = Command.of("RELEASE", keys, token, "ALL");
    return Call.send(locks, locks.link, release, locks.commandTimeout).whenComplete((released, outage) -> {
      if (outage != null) tellOnce(outage);
    });
  }

  private void lose(Supplier<CompletableFuture<?>> cleaning) {
    synchronized (this) {
      if (phase == Phase.LOST) return;
      phase = Phase.LOST;
    }
    ended(cleaning.get());
    closeOwn();
    RedisLock told = lock.get();
    if (told == null) return;
    locks.tellLost(told, fence);
    Locks.tell(() -> options.lost.accept(told));
  }

  /** Notes the end here. The cleaning is what may still be sent with the token. */
  private void ended(CompletableFuture<?> cleaned) {
    CompletableFuture<?> all;
    synchronized (this) {
      if (due != null) due.cancel(false);
      all = CompletableFuture.allOf(cleaned, again);
    }
    if (forgotten != null) forgotten.clean();
    locks.holdsNoLonger(this);
    RedisLock waited = lock.get();
    if (waited != null) waited.ended(this, all);
  }

  private void closeOwn() {
    if (link != locks.link) locks.closeOwn(link);
  }
}
