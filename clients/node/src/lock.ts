import { inspect } from 'node:util';

import { type AcquireCall, type Backend, type Call, Claim, type Grant } from './claim.js';
import { LockLostError, NotHeldError, UnavailableError } from './errors.js';
import { type AcquireOptions, checkAcquire, type LockOptions, type Terms, timeMs, waitMs } from './options.js';
import { after, Bell, doneBy, ignore, now, unlessAborted } from './time.js';

/** Picture of a lock, for texts. It has no token, because the token controls the lock. */
export interface LockState {
  readonly keys: readonly string[];
  readonly state: 'free' | 'acquiring' | 'held' | 'lost';
  readonly fence: number | undefined;
}

/** Hooks of a lock's factory. */
export interface Hooks {
  waited(lock: Lock, ms: number, outcome: Outcome): void;
  granted(lock: Lock): void;
  lost(lock: Lock, onLost: LockOptions['onLost']): void;
}
export type Outcome = 'granted' | 'not acquired' | 'cancelled' | 'failed';

/**
 * The part of a lock that timers and the factory know. From the first renewal on they refer to the lock
 * only weakly, so that a forgotten lock can be collected, and is then released.
 * perf: locks that are released sooner cost no weak reference.
 */
interface Trace {
  lock: Lock | WeakRef<Lock>;
  claim: Claim;
  grant?: Grant | undefined;
  timer?: NodeJS.Timeout | undefined;
}

const lockOf = ({ lock }: Trace) => (lock instanceof WeakRef ? lock.deref() : lock);
const wake = (trace: Trace) => void lockOf(trace)?.wake();

/** The locks that are held now. */
export class Held {
  readonly #traces = new Set<Trace>();
  readonly #collected = new FinalizationRegistry<Trace>((trace) => {
    clearTimeout(trace.timer);
    if (!this.#traces.delete(trace)) return;
    trace.claim.closeOwn();
    void trace.claim.leave(0, true);
  });

  add(trace: Trace) {
    this.#traces.add(trace);
  }

  delete(trace: Trace) {
    this.#traces.delete(trace);
  }

  /** Lets a lock be collected. */
  loosen(trace: Trace) {
    if (trace.lock instanceof WeakRef) return;
    this.#collected.register(trace.lock, trace);
    trace.lock = new WeakRef(trace.lock);
  }

  locks(): Lock[] {
    return [...this.#traces].flatMap((trace) => lockOf(trace) ?? []);
  }
}

/**
 * A lock on one or several keys. One task at a time has it: another `acquire` of the same object
 * waits until the release. With `reentrant` it counts holds instead.
 */
export class Lock {
  readonly keys: readonly string[];
  readonly #backend: Backend;
  readonly #held: Held;
  readonly #hooks: Hooks;
  readonly #terms: Terms;
  readonly #onLost: LockOptions['onLost'];
  readonly #trace: Trace;
  #fence: number | undefined;
  #isLost = false;
  /** The holds of a reentrant lock that were lost and not released since. */
  #lostHolds = 0;
  /** True from a loss until a task releases or acquires the lock. */
  #owesRelease = false;
  #loss?: AbortController | undefined;
  /**
   * True while a task acquires or has the lock. With `reentrant`, while a call changes the number of
   * holds: these calls take turns.
   */
  #isTaken = false;
  /** Calls that wait for this object, in order. */
  readonly #line: (() => void)[] = [];
  /** Latest time at which a call knew that another owner has the lock. */
  #takenAt = 0;
  #isRenewing = false;
  #hasReportedRenewal = false;

  /** @internal */
  constructor(backend: Backend, held: Held, hooks: Hooks, keys: readonly string[], terms: Terms, onLost?: LockOptions['onLost']) {
    this.keys = keys;
    this.#backend = backend;
    this.#held = held;
    this.#hooks = hooks;
    this.#terms = terms;
    this.#onLost = onLost;
    const trace: Trace = { lock: this, claim: new Claim(backend, keys, terms, () => wake(trace)) };
    this.#trace = trace;
  }

  /** Owner's name. Whoever knows it controls the lock. */
  get token(): string {
    return this.#trace.claim.token;
  }

  /** Fence of the latest grant, greater than the fence of every earlier grant of these keys. */
  get fence(): number | undefined {
    return this.#fence;
  }

  /** True if the latest grant was lost. */
  get lost(): boolean {
    const { grant } = this.#trace;
    return this.#isLost || (grant !== undefined && now() >= grant.until);
  }

  /** @internal Remaining lease in ms by the local clock, or 0 if the lock isn't held. */
  get leaseLeftMs(): number {
    return Math.max(0, (this.#trace.grant?.until ?? 0) - now());
  }

  /** Signal that is aborted with a LockLostError when the lock is lost. */
  get signal(): AbortSignal {
    this.#loss ??= new AbortController();
    if (this.#isLost && !this.#loss.signal.aborted) this.#loss.abort(this.#lossError());
    return this.#loss.signal;
  }

  /** Returns the fence, or undefined if another owner had the lock until the time limit was over. */
  async acquire(options: AcquireOptions = {}): Promise<number | undefined> {
    checkAcquire(options);
    const limitMs = waitMs(options.waitMs ?? this.#terms.waitMs);
    const began = now();
    const call = {
      until: began + (limitMs || this.#backend.commandTimeoutMs),
      signal: options.signal,
      reports: limitMs === Infinity,
      waits: limitMs > 0,
      holds: 1,
      leaseMs: Math.min(this.#terms.leaseMs, this.#terms.maxHoldMs),
      waited: false,
      unsure: false,
    };
    let outcome: Outcome = 'failed';
    try {
      const gate = this.#backend.pace.enter();
      if (gate) await unlessAborted(gate, options.signal);
      const fence = await this.#acquire(call);
      outcome = fence === undefined ? 'not acquired' : 'granted';
      return fence;
    } catch (error) {
      if (options.signal?.aborted) outcome = 'cancelled';
      throw error;
    } finally {
      if (call.waited) this.#hooks.waited(this, now() - began, outcome);
    }
  }

  /** Tries once. Returns the fence, or undefined if another owner has the lock. */
  async tryAcquire(options: Pick<AcquireOptions, 'signal'> = {}): Promise<number | undefined> {
    checkAcquire(options);
    return this.acquire({ waitMs: 0, signal: options.signal });
  }

  /**
   * Releases the lock, or one hold of it. Returns false if the lock was lost. Throws an
   * UnavailableError if no server confirms it in time: the lock is no longer renewed then, and
   * the release goes on in the background.
   */
  async release(): Promise<boolean> {
    const grant = this.#current();
    if (!grant) return this.#releaseLost();
    const call = this.#soon(grant.until);
    return this.#terms.reentrant ? this.#releaseInTurn(grant, call) : this.#releaseHold(call);
  }

  /** Sets the lease, also for later renewals. Returns false if the lock isn't held. */
  async extend(leaseMs: number): Promise<boolean> {
    const newLeaseMs = timeMs('leaseMs', leaseMs);
    const grant = this.#current();
    if (!grant) return false;
    const { leaseMs: oldLeaseMs, endsAt } = grant;
    // Every command sent from now on asks for the new lease, because an old one would undo it.
    grant.leaseMs = newLeaseMs;
    grant.endsAt = Math.max(endsAt, now() + newLeaseMs);
    try {
      return await this.#prolong(grant, this.#soon(grant.until));
    } catch (error) {
      if (grant.leaseMs === newLeaseMs) Object.assign(grant, { leaseMs: oldLeaseMs, endsAt });
      throw error;
    } finally {
      if (this.#trace.grant === grant) this.#schedule(grant);
    }
  }

  /** Returns the remaining lease on the server in ms, or 0 if the lock isn't held there. */
  left(): Promise<number> {
    return this.#trace.claim.leaseLeft(this.#soon());
  }

  /** Asks the server whether this lock holds its keys. */
  async owned(): Promise<boolean> {
    return (await this.left()) > 0;
  }

  /**
   * Ends a block: releases the lock unless that was done. Throws a LockLostError if the lock was
   * lost. If no server confirms the release, the lock ends with its lease.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.endBlock();
    if (this.#isLost) throw this.#lossError();
  }

  /** @internal Releases the lock if it is held. Reports a failure, because the block has its own result. */
  async endBlock() {
    try {
      if (this.#current() ?? this.#isLost) await this.release();
    } catch (error) {
      this.#backend.report(error);
    }
  }

  /** @internal Releases all holds. */
  async releaseAll(): Promise<boolean> {
    const grant = this.#current();
    if (!grant) return false;
    grant.holds = 1;
    return this.release();
  }

  /**
   * Takes over a grant of this token that another process has made. Returns false if it has ended.
   * @internal
   */
  async adopt(): Promise<boolean> {
    const call = this.#soon();
    const { claim } = this.#trace;
    const leaseMs = await claim.leaseLeft(call);
    if (leaseMs === 0) return false;
    const grant = await claim.adopt({ ...call, waits: false, holds: 1, leaseMs, waited: false, unsure: false });
    if (grant) this.#hold(grant);
    return grant !== undefined;
  }

  /**
   * Releases a grant of this token that another process has made. Returns false if it has ended.
   * @internal
   */
  disown(): Promise<boolean> {
    return this.#trace.claim.release({ holds: 0, until: now() + this.#terms.leaseMs }, 0, this.#soon());
  }

  toJSON(): LockState {
    const { grant } = this.#trace;
    const state = this.lost ? 'lost' : grant ? 'held' : this.#isTaken ? 'acquiring' : 'free';
    return { keys: this.keys, state, fence: this.#fence };
  }

  [inspect.custom](): string {
    return `Lock ${inspect(this.toJSON())}`;
  }

  async #acquire(call: AcquireCall): Promise<number | undefined> {
    call.signal?.throwIfAborted();
    const began = now();
    if (!(await this.#enter(call))) {
      const { outage } = this.#trace.claim;
      if (outage) throw outage;
      if (!this.#isOfAnother() && this.#takenAt < began) throw this.#turnError();
      return undefined;
    }
    let grant: Grant | undefined;
    try {
      const held = this.#current();
      if (!held && this.#lostHolds > 0) throw this.#lossError();
      grant = await (held ? this.#addHold(held, call) : this.#begin(call));
      return grant?.fence;
    } finally {
      if (!grant || this.#terms.reentrant) this.#pass();
    }
  }

  /** Waits until no other call has this object. Returns false if the time is over before that. */
  async #enter(call: AcquireCall): Promise<boolean> {
    this.#current();
    this.#endLoss();
    if (!this.#isTaken) return (this.#isTaken = true);
    call.waited = true;
    const isOfAnother = this.#isOfAnother();
    if (isOfAnother) this.#takenAt = now();
    return (call.waits || !isOfAnother) && this.#waitInLine(call);
  }

  /**
   * Returns true if another owner is known to have the lock. The holds of a reentrant lock are this
   * object's own.
   */
  #isOfAnother(): boolean {
    const { grant, claim } = this.#trace;
    return claim.isPlaced || (grant !== undefined && !this.#terms.reentrant);
  }

  /** Waits for the turn of this call. Returns false if the time is over before that. */
  async #waitInLine({ until, signal }: Call): Promise<boolean> {
    const bell = new Bell();
    const isWaiting = () => this.#line.includes(bell.ring);
    this.#line.push(bell.ring);
    while (isWaiting() && !signal?.aborted && now() < until) await bell.wait(until - now(), signal);
    if (isWaiting()) this.#line.splice(this.#line.indexOf(bell.ring), 1);
    else if (signal?.aborted) this.#pass();
    else return true;
    signal?.throwIfAborted();
    return false;
  }

  /** Waits until no other call has this object, without a limit. */
  async #turn(): Promise<void> {
    if (this.#isTaken) await new Promise<void>((enter) => this.#line.push(enter));
    this.#isTaken = true;
  }

  /** Gives this object to the next call in line. */
  #pass() {
    const next = this.#line.shift();
    if (next) next();
    else this.#isTaken = false;
  }

  /**
   * Ends the turn of the owner that lost the lock. Some of the keys may still be held. An acquire
   * ends it too, because the owner may acquire the lock again without a release.
   */
  #endLoss() {
    if (!this.#owesRelease) return;
    this.#owesRelease = false;
    void this.#trace.claim.leave(0, false);
    if (!this.#terms.reentrant) this.#pass();
  }

  async #begin(call: AcquireCall): Promise<Grant | undefined> {
    if (this.#trace.claim.isSpent && this.#terms.token === undefined) this.#renewClaim();
    const grant = await this.#trace.claim.acquire(call);
    if (grant) this.#hold(grant);
    if (!grant || !this.#terms.reentrant) this.#takenAt = now();
    return grant;
  }

  async #addHold(grant: Grant, call: AcquireCall): Promise<Grant> {
    const added = await this.#askForHold(grant, call);
    if (this.#trace.grant === grant && added?.fence === grant.fence) {
      grant.holds += 1;
      this.#leased(grant, added);
      this.#schedule(grant);
      return grant;
    }
    if (this.#trace.grant === grant) this.#lose();
    this.#owesRelease = false;
    void this.#trace.claim.leave(0, false);
    await this.#trace.claim.left();
    throw this.#lossError();
  }

  /** Asks for a further hold. Returns undefined if the grant has ended. */
  async #askForHold(grant: Grant, call: AcquireCall): Promise<Grant | undefined> {
    const further = {
      ...call,
      waits: false,
      holds: grant.holds + 1,
      // An extension or a renewal may change the lease meanwhile.
      get leaseMs() {
        return nextLeaseMs(grant);
      },
      get until() {
        return Math.min(call.until, grant.until);
      },
    };
    try {
      return await this.#trace.claim.acquire(further);
    } catch (error) {
      if (call.signal?.aborted || this.#current() === grant) throw error;
      return undefined;
    }
  }

  #hold(grant: Grant) {
    this.#trace.grant = grant;
    this.#fence = grant.fence;
    this.#isLost = false;
    if (this.#loss?.signal.aborted) this.#loss = undefined;
    this.#hasReportedRenewal = false;
    this.#held.add(this.#trace);
    this.#schedule(grant);
    this.#hooks.granted(this);
  }

  /** Returns the grant. Marks it as lost if its lease has ended on the local clock. */
  #current(): Grant | undefined {
    const { grant } = this.#trace;
    if (grant && now() >= grant.until) this.#lose();
    return this.#trace.grant;
  }

  /** Wakes the lock for its next renewal, or for the end of its lease. */
  #schedule(grant: Grant) {
    const leftMs = grant.until - now();
    const renews = (this.#terms.renew || this.#terms.session) && grant.until < grant.endsAt;
    const trace = this.#trace;
    clearTimeout(trace.timer);
    // Less may be left than the lease, after an extension without a reply.
    trace.timer = after(renews ? Math.min(grant.leaseMs / 3, leftMs / 2) : leftMs, () => wake(trace)).unref();
  }

  /** @internal */
  async wake() {
    // After a stop of the process, read the received replies before the clock decides.
    await new Promise(setImmediate);
    const grant = this.#current();
    if (!grant) return;
    this.#held.loosen(this.#trace);
    if (this.#isRenewing) return this.#schedule(grant);
    this.#isRenewing = true;
    const isDue = grant.until - now() > 0 && grant.until < grant.endsAt && (this.#terms.renew || this.#terms.session);
    try {
      if (isDue) await this.#prolong(grant, { until: grant.until, reports: true, background: true });
    } catch (error) {
      if (!(error instanceof UnavailableError) && !this.#hasReportedRenewal) this.#backend.report(error);
      this.#hasReportedRenewal = true;
    }
    this.#isRenewing = false;
    if (this.#trace.grant === grant) this.#schedule(grant);
  }

  async #prolong(grant: Grant, call: Call): Promise<boolean> {
    const set = { setAt: 0, until: 0 };
    const leaseFromNow = () => {
      // A session would open its connection again.
      if (this.#trace.grant !== grant) throw new NotHeldError('it was released meanwhile');
      const ms = nextLeaseMs(grant);
      set.setAt = now();
      set.until = set.setAt + ms;
      return ms;
    };
    let extended;
    try {
      extended = await this.#trace.claim.extend(leaseFromNow, () => this.#shorten(grant, set), call);
    } catch (error) {
      if (!(error instanceof NotHeldError)) throw error;
    }
    if (this.#trace.grant !== grant) return false;
    if (!extended) {
      this.#lose();
      return false;
    }
    this.#leased(grant, set);
    return true;
  }

  /** Notes the lease that a command has set, unless a command that was sent later has set it. */
  #leased(grant: Grant, { setAt, until }: Pick<Grant, 'setAt' | 'until'>) {
    if (setAt >= grant.setAt) Object.assign(grant, { setAt, until });
  }

  /** Lets the lease end earlier, because a command without a reply may have set it. */
  #shorten(grant: Grant, set: Pick<Grant, 'setAt' | 'until'>) {
    if (this.#trace.grant !== grant || set.until >= grant.until) return;
    this.#leased(grant, set);
    this.#schedule(grant);
  }

  async #releaseLost(): Promise<false> {
    if (!this.#isLost) throw new NotHeldError(`released though not held: ${this.keys.join(', ')}`);
    this.#lostHolds = Math.max(0, this.#lostHolds - 1);
    this.#endLoss();
    await this.#trace.claim.left();
    return false;
  }

  /**
   * Releases a hold when it is this call's turn. If the turn doesn't come in time, the release goes
   * on in the background.
   */
  async #releaseInTurn(grant: Grant, call: Call): Promise<boolean> {
    const turn = this.#turn();
    const released = turn.then(() => this.#releaseHold(call)).finally(() => this.#pass());
    if (await doneBy(turn, call.until)) return released;
    released.catch(ignore);
    throw stillLeased(this.#trace.claim.outage ?? this.#turnError(), grant);
  }

  async #releaseHold(call: Call): Promise<boolean> {
    const grant = this.#current();
    if (!grant) return this.#releaseLost();
    grant.holds -= 1;
    const isLast = grant.holds === 0;
    if (isLast) this.#drop();
    const { claim } = this.#trace;
    const keepUntil = grant.since + this.#terms.atLeastMs;
    try {
      const released = await claim.release(grant, keepUntil, call);
      // A renewal may have found the loss before.
      if (!released && (isLast || this.#trace.grant === grant)) this.#lose();
      // The other holds of a lost lock may still have some of its keys.
      if (isLast) this.#owesRelease = false;
      return released;
    } catch (error) {
      throw error instanceof UnavailableError ? stillLeased(error, grant) : error;
    } finally {
      if (isLast) claim.closeOwn();
      if (isLast && keepUntil > now() && this.#terms.token === undefined) this.#renewClaim();
      if (isLast && !this.#terms.reentrant) this.#pass();
    }
  }

  #lose() {
    if (this.#terms.reentrant) this.#lostHolds = this.#trace.grant?.holds ?? 0;
    this.#drop();
    this.#trace.claim.closeOwn();
    this.#isLost = true;
    this.#owesRelease = true;
    this.#loss?.abort(this.#lossError());
    // Called later, so that its exception doesn't look like a failed renewal.
    queueMicrotask(() => this.#hooks.lost(this, this.#onLost));
  }

  /** Stops the renewal. */
  #drop() {
    this.#trace.grant = undefined;
    clearTimeout(this.#trace.timer);
    this.#held.delete(this.#trace);
  }

  /** Takes a new token, because commands with the old one may still reach the server. */
  #renewClaim() {
    const trace = this.#trace;
    trace.claim = new Claim(this.#backend, this.keys, this.#terms, () => wake(trace));
  }

  #soon(latest = Infinity): Call {
    return { until: Math.min(now() + this.#backend.commandTimeoutMs, latest) };
  }

  /** Error of a call whose time was over before its turn. */
  #turnError(): UnavailableError {
    return new UnavailableError('an earlier call of this lock has no reply yet');
  }

  #lossError(): LockLostError {
    return new LockLostError(`lost while it was held: ${this.keys.join(', ')}`);
  }
}

/** Returns the lease to ask for. The end of the longest hold cuts the last lease short. */
function nextLeaseMs({ leaseMs, endsAt }: Grant): number {
  return Math.max(1, Math.ceil(Math.min(leaseMs, endsAt - now())));
}

function stillLeased({ message, cause }: UnavailableError, { until }: Grant) {
  const leftMs = Math.max(0, Math.round(until - now()));
  return new UnavailableError(`${message}; the lock ends with its lease, in ${leftMs} ms at the latest`, { cause });
}
