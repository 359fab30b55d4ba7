/** A grant: it is renewed while it is held, until it is released or lost. */

import { inspect } from 'node:util';

import type { Granted } from './acquire.js';
import { type Commands, goOn } from './commands.js';
import { Call } from './connection.js';
import { LockLostError, NotHeldError, UnavailableError } from './errors.js';
import { tell, warn } from './observer.js';
import { callback, type Options, timeMs, type Word } from './options.js';
import { after, now } from './time.js';

/** Least time by which a renewal must move the deadline. */
const LEAST_MS = 2;
/** Lease that makes no other lease longer. */
const SHORTEST_MS = 1;

const lossError = () => new LockLostError('the lock was lost before it was released');
const notHeld = () => new NotHeldError('the lock is not held');

/** Parts that all grants of one `Locks` share. */
export interface Parts {
  readonly commands: Commands;
  readonly held: Set<Hold>;
  readonly observer: { lost?(grant: Grant): void };
}

/** Grants that the program dropped. */
const dropped = new FinalizationRegistry<Hold>((hold) => hold.drop());

/** The state of a grant. Times are those of the monotonic clock. */
export class Hold {
  readonly loss = new AbortController();
  state: 'held' | 'lost' | 'left' = 'held';
  deadline = -Infinity;
  /** Lease that renewals set. */
  leaseMs: number;
  /** The grant of the program. The reference is weak, so that a dropped grant can be collected. */
  readonly #grant: WeakRef<Grant>;
  /** Time until which the server keeps a lock with `atLeastMs`. */
  readonly #staysUntil: number;
  #renewAt = Infinity;
  #timer: NodeJS.Timeout | undefined;
  /** True if the observer knows that a renewal was refused. */
  #isRefused = false;

  constructor(
    readonly parts: Parts,
    readonly options: Options,
    readonly granted: Granted,
  ) {
    this.leaseMs = options.leaseMs;
    this.#staysUntil = now() + options.atLeastMs;
    const grant = new Grant(this);
    this.#grant = new WeakRef(grant);
    dropped.register(grant, this, this);
    parts.held.add(this);
    this.#prolong(options.firstLeaseMs, granted.sentAt);
    granted.line?.ended.then(() => this.lose());
  }

  get grant(): Grant {
    return this.#grant.deref() ?? new Grant(this);
  }

  get isLost(): boolean {
    return this.state === 'lost' || (this.state === 'held' && now() >= this.deadline);
  }

  // --- the lease ---------------------------------------------------------------------------------

  /**
   * Moves the deadline. The lease counts from the request: the server counts from then or later.
   */
  #prolong(leaseMs: number, sentAt: number) {
    const { firstLeaseMs, longestHoldMs, margin, renew } = this.options;
    // A late command of the acquire sets its own lease, which may be shorter.
    const shortestMs = this.granted.isUnclear ? Math.min(leaseMs, firstLeaseMs) : leaseMs;
    this.deadline = Math.max(this.deadline, sentAt + shortestMs - margin);
    const isLast = this.deadline >= this.granted.sentAt + longestHoldMs - LEAST_MS;
    this.#lookAt(isLast || !renew ? Infinity : sentAt + shortestMs / 3);
  }

  /** Looks after the grant when it must be renewed, and at its deadline. */
  #lookAt(renewAt: number) {
    this.#renewAt = renewAt;
    clearTimeout(this.#timer);
    this.#timer = after(Math.min(renewAt, this.deadline) - now(), this.#look, true);
  }

  readonly #look = () => {
    const time = now();
    if (time >= this.deadline) this.lose();
    else if (time < this.#renewAt) this.#lookAt(this.#renewAt);
    else {
      this.#lookAt(Infinity);
      void this.#renew();
    }
  };

  async #renew() {
    const { longestHoldMs, margin, name } = this.options;
    const { commands } = this.parts;
    const leaseMs = Math.min(this.leaseMs, this.granted.sentAt + longestHoldMs + margin - now());
    const call = new Call(this.granted.token, undefined, true);
    try {
      await commands.retry(name, (end) => this.extend(leaseMs, call, end), call, this.deadline);
      this.#isRefused = false;
    } catch (error) {
      if (this.state !== 'held') return;
      const isRefused = !(error instanceof UnavailableError);
      if (isRefused && !this.#isRefused) commands.tellUnavailable(error);
      this.#isRefused = isRefused;
      // A later renewal may succeed before the deadline.
      this.#lookAt(now() + this.leaseMs / 10);
    }
  }

  /** Sends an extension once. Returns false if the grant is over. */
  async extend(leaseMs: number, call: Call, end: number): Promise<boolean> {
    // A renewal that is repeated after the release would undo its least time.
    if (this.state !== 'held') return false;
    const { options, granted } = this;
    const words = options.extend(granted.token, leaseMs);
    const isHeld = await this.parts.commands.holdsAll(options, words, call, end);
    if (this.state !== 'held') return false;
    if (isHeld) this.#prolong(leaseMs, call.sentAt);
    // The keys that aren't lost stay until the release, because the block may still run.
    else this.lose();
    return this.state === 'held';
  }

  // --- the end -----------------------------------------------------------------------------------

  /** Returns false if the grant ended before. */
  end(state: 'lost' | 'left'): boolean {
    if (this.state !== 'held') return false;
    this.state = state;
    clearTimeout(this.#timer);
    this.parts.held.delete(this);
    dropped.unregister(this);
    return true;
  }

  /** Ends the grant as lost, and tells the program once. */
  lose() {
    if (!this.end('lost')) return;
    const { grant } = this;
    const { onLost, margin } = this.options;
    const { observer } = this.parts;
    this.loss.abort(lossError());
    if (onLost) tell(() => onLost(grant));
    if (observer.lost) tell(() => observer.lost!(grant));
    // Its close releases the lock, so the connection of a session stays for the margin.
    if (this.granted.line) after(margin, this.#close, true);
  }

  /** Releases the grant of a program that dropped it. */
  drop() {
    warn(`a grant of ${inspect(this.options.keys)} was dropped without a release`);
    this.lose();
    this.leaveInBackground();
  }

  readonly #close = () => this.granted.line?.close();

  /** Sends the release until a server has replied, or the time is over. */
  async leave(call: Call, until: number): Promise<boolean> {
    const { options } = this;
    const { commands } = this.parts;
    const once = (end: number) => commands.holdsAll(options, this.#lastWords(), call, end);
    const wasHeld = await commands.retry(options.name, once, call, until);
    this.#close();
    // If a reply was lost, the command before may have released the lock.
    return wasHeld || (call.unanswered > 0 && now() < this.deadline);
  }

  /** Sends the release until a server has replied, or the lease is over. */
  leaveInBackground() {
    const end = Math.max(this.deadline, now()) + this.options.margin;
    goOn(this.leave(new Call(this.granted.token, undefined, true), end).finally(this.#close));
  }

  /** Returns the command that ends the grant. */
  #lastWords(): Word[] {
    const { options } = this;
    const { token, isUnclear } = this.granted;
    const restMs = this.#staysUntil - now();
    if (restMs > 0) return options.endAfter(token, restMs);
    // A late command has the lease of the acquire, which an extend may have made shorter.
    return isUnclear ? options.leave(token, options.longestTraceMs) : options.release(token);
  }
}

/** A grant of a lock. Whoever has it may extend or release it. */
export class Grant {
  readonly keys: readonly string[];
  /** Fencing token, greater than that of every earlier grant of these keys. */
  readonly fence: number;
  readonly #hold: Hold;

  /** @internal */
  constructor(hold: Hold) {
    this.keys = hold.options.keys;
    this.fence = hold.granted.fence;
    this.#hold = hold;
  }

  /** Token, by which any client can extend or release this grant. */
  get token(): string {
    return this.#hold.granted.token;
  }

  /** True if the grant ended before its release. */
  get lost(): boolean {
    return this.#hold.isLost;
  }

  /** Signal that is aborted with a LockLostError when the grant is lost. */
  get signal(): AbortSignal {
    const { loss, isLost } = this.#hold;
    if (isLost) loss.abort(lossError());
    return loss.signal;
  }

  /** Returns the time in ms until the loss if the lease isn't renewed, or 0 if the grant ended. */
  left(): number {
    const { state, deadline } = this.#hold;
    return state === 'held' ? Math.max(0, deadline - now()) : 0;
  }

  /**
   * Releases the lock. Returns false if it had been lost. Throws a NotHeldError if the grant was
   * released before, and an UnavailableError if no server could be asked: the release goes on in
   * the background then.
   */
  async release(): Promise<boolean> {
    const hold = this.#hold;
    this.#refuseReleased();
    const wasLost = hold.isLost;
    hold.end('left');
    hold.state = 'left';
    try {
      const until = now() + hold.parts.commands.servers.timeoutMs;
      const isHeld = await hold.leave(new Call(this.token), until);
      return isHeld && !wasLost;
    } catch (error) {
      hold.leaveInBackground();
      if (wasLost) return false;
      throw error;
    }
  }

  /** Lets the lease end in `leaseMs`, or later. Returns false if the lock was lost. */
  async extend(leaseMs: number): Promise<boolean> {
    const hold = this.#hold;
    const wholeMs = timeMs('leaseMs', leaseMs);
    const { margin, name } = hold.options;
    if (wholeMs <= margin)
      throw new RangeError(`leaseMs: expected more than the margin of ${margin}, not ${leaseMs}`);
    if (hold.isLost) return false;
    const call = new Call(this.token);
    const extend = (end: number) => hold.extend(wholeMs, call, end);
    const isHeld = await hold.parts.commands.retryBriefly(name, extend, call);
    if (isHeld) hold.leaseMs = wholeMs;
    return isHeld;
  }

  /** Asks the server whether this grant holds all its keys. */
  async owned(): Promise<boolean> {
    const { options, parts } = this.#hold;
    const call = new Call(this.token);
    // LOCK.EXTEND replies how many keys the token holds. This one changes no lease.
    const words = options.extend(this.token, SHORTEST_MS);
    const check = (end: number) => parts.commands.holdsAll(options, words, call, end);
    return parts.commands.retryBriefly(options.name, check, call);
  }

  /** Leaves the grant to another process, which adopts it. It isn't renewed here any more. */
  detach() {
    const hold = this.#hold;
    if (hold.granted.line)
      throw new TypeError('a session ends with its connection, so it cannot be detached');
    if (hold.isLost || !hold.end('left')) throw notHeld();
  }

  #refuseReleased() {
    if (this.#hold.state === 'left') throw notHeld();
  }

  /**
   * Runs `work`, and releases the lock after it. A loss aborts the signal, and rejects with a
   * LockLostError once the work has ended, unless the work fails by itself.
   */
  async using<T>(work: Work<T>): Promise<T> {
    callback('work', work);
    this.#refuseReleased();
    const { signal } = this;
    let result: T;
    try {
      signal.throwIfAborted();
      result = await work(this, signal);
    } catch (error) {
      await this.#endBlock();
      throw isAbort(error, signal) ? signal.reason : error;
    }
    await this[Symbol.asyncDispose]();
    return result;
  }

  /** Ends a block like `using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!(await this.#endBlock())) throw lossError();
  }

  /** Releases the grant, unless the block did so. Returns false if it was lost. */
  async #endBlock(): Promise<boolean> {
    const { state, parts } = this.#hold;
    if (state === 'left') return true;
    try {
      return await this.release();
    } catch (error) {
      parts.commands.tellUnavailable(error);
      return true;
    }
  }
}

/** The work of a guarded block. */
export type Work<T> = (grant: Grant, signal: AbortSignal) => T | Promise<T>;

/** Returns true if work failed because the signal was aborted. */
const isAbort = (error: unknown, signal: AbortSignal) =>
  signal.aborted &&
  (error === signal.reason || (error instanceof Error && error.name === 'AbortError'));
