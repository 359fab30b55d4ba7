/** A grant: it is renewed while it is held, until it is released or lost. */

import { inspect } from 'node:util';

import { type Commands, goOn } from './commands.js';
import { Call } from './connection.js';
import { LockLostError, NotHeldError, UnavailableError } from './errors.js';
import type { Keeper } from './keeper.js';
import { tell, warn } from './observer.js';
import { callback, type Options, timeMs, type Word } from './options.js';
import { Tie } from './tie.js';
import { after, now } from './time.js';

/** Least time by which a renewal must move the deadline. */
const LEAST_MS = 2;

const lossError = () => new LockLostError('the lock was lost before it was released');

/** Picture of a grant, for texts. It has no token, because the token controls the lock. */
export interface GrantState {
  readonly keys: readonly string[];
  readonly state: 'held' | 'lost' | 'released';
  readonly fence: number;
}

/** Parts that all grants of one `Locks` share. */
export interface Parts {
  readonly commands: Commands;
  readonly keeper: Keeper<Hold>;
  tellLost(grant: Grant): void;
}

type OnLost = ((grant: Grant) => void) | undefined;

/** Grants that the program dropped. */
const dropped = new FinalizationRegistry<Hold>((hold) => hold.drop());

/** The state of a grant. Times are those of the monotonic clock. */
export class Hold {
  readonly options: Options;
  readonly token: string;
  readonly fence: number;
  state: 'held' | 'lost' | 'left' = 'held';
  deadline = -Infinity;
  /** True if a command that asked for this grant may still arrive. */
  isUnclear = false;
  readonly #parts: Parts;
  readonly #onLost: OnLost;
  /**
   * The grant of the program. From the first renewal on the reference is weak, so that a grant that
   * the program drops can be collected. perf: a grant that is released sooner costs no weak
   * reference.
   */
  #grant: Grant | WeakRef<Grant>;
  #leaseMs: number;
  #renewAt = Infinity;
  #grantedAt: number | undefined;
  /** Time until which the server keeps a lock with `atLeastMs`. */
  readonly #staysUntil: number;
  readonly #tie: Tie | undefined;
  /** True during a renewal: there is one at a time, because each may move the tie. */
  #isRenewing = false;
  /** True if the observer knows that a renewal was refused. */
  #isRefused = false;
  #loss: AbortController | undefined;

  constructor(parts: Parts, options: Options, onLost: OnLost, token: string, fence: number) {
    this.options = options;
    this.token = token;
    this.fence = fence;
    this.#parts = parts;
    this.#onLost = onLost;
    this.#leaseMs = options.leaseMs;
    this.#staysUntil = now() + options.atLeastMs;
    this.#grant = new Grant(this);
    if (options.session)
      this.#tie = new Tie(parts.commands.servers, options.leaseMs, this.#renewNow);
  }

  get grant(): Grant {
    const grant = this.#grant instanceof WeakRef ? this.#grant.deref() : this.#grant;
    return grant ?? new Grant(this);
  }

  /** True from the time at which the program gets the grant until its end. */
  get #isGiven(): boolean {
    return this.#parts.keeper.held.has(this);
  }

  get isLost(): boolean {
    return this.state === 'lost' || (this.state === 'held' && now() >= this.deadline);
  }

  /** Signal that is aborted with a LockLostError at the loss. */
  get signal(): AbortSignal {
    this.#loss ??= new AbortController();
    if (this.isLost) this.#abort();
    return this.#loss.signal;
  }

  #abort() {
    if (this.#loss && !this.#loss.signal.aborted) this.#loss.abort(lossError());
  }

  // --- the lease ---------------------------------------------------------------------------------

  /**
   * Moves the deadline. The lease counts from the request: the server counts from then or later.
   */
  prolong(leaseMs: number, sentAt: number) {
    this.#grantedAt ??= sentAt;
    const longest = this.#grantedAt + this.options.maxHoldMs;
    this.deadline = Math.max(this.deadline, sentAt + leaseMs - this.options.margin);
    const isLast = this.deadline >= longest - LEAST_MS;
    // A late command of the acquire sets its own lease, which may be shorter.
    const everyMs = (this.isUnclear ? Math.min(leaseMs, this.options.firstLeaseMs) : leaseMs) / 3;
    this.#renewAt = isLast || !this.options.renew ? Infinity : sentAt + everyMs;
  }

  /** Time at which the keeper must look after the grant. */
  get due(): number {
    return Math.min(this.#renewAt, this.deadline);
  }

  /** Renews the grant, or tells of its loss, if that is due. Returns the next time to look. */
  lookAfter(time: number): number {
    if (time >= this.deadline) {
      this.lose();
      return Infinity;
    }
    if (time >= this.#renewAt) {
      this.#renewAt = Infinity;
      this.#loosen();
      if (!this.#isRenewing) goOn(this.#renew());
    }
    return this.due;
  }

  #loosen() {
    if (this.#grant instanceof WeakRef) return;
    dropped.register(this.#grant, this, this);
    this.#grant = new WeakRef(this.#grant);
  }

  /** Renews a session whose connection was lost, because the server may have released the lock. */
  readonly #renewNow = () => {
    // Before the program has the grant, the call that makes the tie repeats it.
    if (!this.#isGiven) return;
    this.#renewAt = now();
    this.#parts.keeper.hold(this);
  };

  async #renew() {
    const call = new Call(this.token, undefined, true);
    const longest = this.#grantedAt! + this.options.maxHoldMs + this.options.margin;
    const leaseMs = Math.min(this.#leaseMs, longest - now());
    this.#isRenewing = true;
    try {
      await this.#parts.commands.retry(
        (end) => this.#extend(leaseMs, call, end, this.#tie),
        call,
        this.deadline,
      );
      this.#isRefused = false;
    } catch (error) {
      if (!this.#isRefused && !this.isLost && !(error instanceof UnavailableError)) {
        this.#isRefused = true;
        this.#parts.commands.tellUnavailable(error);
      }
      // A later renewal may succeed before the deadline.
      this.#renewAt = now() + this.#leaseMs / 10;
    } finally {
      this.#isRenewing = false;
    }
    this.#parts.keeper.hold(this);
  }

  async #extend(leaseMs: number, call: Call, end: number, tie?: Tie): Promise<boolean> {
    // A renewal that is repeated after the release would undo its least time.
    if (this.state !== 'held') return false;
    const { options, token } = this;
    const words = options.extend(token, leaseMs, tie !== undefined);
    const count = await this.#parts.commands.ask(options.name, words, call, end, tie);
    if (Number(count) !== options.keys.length) {
      // The keys that aren't lost stay until the release, because the block may still run.
      this.lose();
      return false;
    }
    this.prolong(leaseMs, call.sentAt);
    tie?.moved(call.sentAt);
    return this.state === 'held';
  }

  /** Ties the grant to a connection of its own. */
  async tie(until: number, signal: AbortSignal | undefined) {
    const tie = this.#tie!;
    const call = new Call(this.token, signal);
    const end = Math.min(until, now() + this.#parts.commands.timeoutMs);
    try {
      const isHeld = await this.#parts.commands.retry(
        (by) => this.#extend(this.options.firstLeaseMs, call, by, tie),
        call,
        end,
      );
      if (!isHeld)
        throw new LockLostError('the lock was lost before it was tied to its connection');
    } catch (error) {
      this.#end('left');
      tie.close();
      throw error;
    }
  }

  async extend(leaseMs: number): Promise<boolean> {
    const wholeMs = timeMs('leaseMs', leaseMs);
    const { margin } = this.options;
    if (wholeMs <= margin)
      throw new RangeError(`leaseMs: expected more than the margin of ${margin}, not ${leaseMs}`);
    return !this.isLost && this.state === 'held' && this.takeOver(wholeMs);
  }

  /** Sets the lease, also of a grant that another process acquired. */
  async takeOver(leaseMs: number): Promise<boolean> {
    const call = new Call(this.token);
    const end = now() + this.#parts.commands.timeoutMs;
    const isHeld = await this.#parts.commands.retry(
      (by) => this.#extend(leaseMs, call, by),
      call,
      end,
    );
    if (isHeld) {
      this.#leaseMs = leaseMs;
      this.#parts.keeper.hold(this);
    }
    return isHeld;
  }

  // --- the end -----------------------------------------------------------------------------------

  /** Returns false if the grant ended before. */
  #end(state: 'lost' | 'left'): boolean {
    if (this.state !== 'held') return false;
    this.state = state;
    this.#parts.keeper.held.delete(this);
    if (this.#grant instanceof WeakRef) dropped.unregister(this);
    return true;
  }

  /** Ends the grant as lost, and tells the program once if it has the grant. */
  lose(): boolean {
    const isGiven = this.#isGiven;
    if (!this.#end('lost')) return false;
    if (isGiven) this.#tellLost();
    // Its close releases the lock, so the connection of a session stays for the margin.
    if (this.#tie) after(this.options.margin, () => this.#tie!.close(), true);
    return true;
  }

  #tellLost() {
    this.#abort();
    const { grant } = this;
    if (this.#onLost) tell(() => this.#onLost!(grant));
    this.#parts.tellLost(grant);
  }

  /** Releases the grant of a program that dropped it. */
  drop() {
    if (!this.#end('left')) return;
    this.#abort();
    warn(`a grant of ${inspect(this.options.keys)} was dropped without a release`);
    this.#parts.tellLost(this.grant);
    this.#leaveInBackground(now());
  }

  detach() {
    if (this.#tie)
      throw new TypeError('a session ends with its connection, so it cannot be detached');
    if (this.isLost || !this.#end('left')) throw new NotHeldError('the lock is not held');
  }

  refuseReleased() {
    if (this.state === 'left') throw new NotHeldError('the lock is not held');
  }

  /**
   * Releases the lock by a time. Later the release goes on without a caller. Returns true if it
   * still held.
   */
  async release(until = now() + this.#parts.commands.timeoutMs): Promise<boolean> {
    this.refuseReleased();
    const began = now();
    const wasLost = this.isLost;
    if (!this.#end('left')) this.state = 'left';
    const call = new Call(this.token);
    try {
      const isHeld = await this.#leave(call, until, began);
      return isHeld && !wasLost;
    } catch (error) {
      this.#leaveInBackground(began);
      if (wasLost) return false;
      throw error;
    }
  }

  /**
   * Ends a guarded block: releases the grant, unless the block did so. Returns false if it was
   * lost.
   */
  async endBlock(): Promise<boolean> {
    if (this.state === 'left') return true;
    try {
      return await this.release();
    } catch (error) {
      this.#parts.commands.tellUnavailable(error);
      return true;
    }
  }

  /** Sends the release until a server has replied, or the time is over. */
  async #leave(call: Call, until: number, began: number): Promise<boolean> {
    const { options } = this;
    const once = async (end: number) => {
      const count = await this.#parts.commands.ask(options.name, this.lastWords(), call, end);
      // If a reply was lost, the command before may have released the lock.
      return (
        Number(count) === options.keys.length || (call.unanswered > 0 && now() < this.deadline)
      );
    };
    const isHeld = await this.#parts.commands.retry(once, call, until);
    this.#tie?.close();
    return isHeld;
  }

  /** Sends the release until a server has replied, or the lease is over. */
  #leaveInBackground(began: number) {
    const end = Math.max(this.deadline, began) + this.options.margin;
    const leaves = this.#leave(new Call(this.token, undefined, true), end, began);
    goOn(leaves.finally(() => this.#tie?.close()));
  }

  /** Returns the command that ends the grant. */
  lastWords(): Word[] {
    const { options, token } = this;
    const restMs = this.#staysUntil - now();
    if (restMs > 0) return options.endAfter(token, restMs);
    // A late command has the lease of the acquire, which an extend may have made shorter.
    return this.isUnclear ? options.leave(token, options.longestTraceMs) : options.release(token);
  }

  async isOwned(): Promise<boolean> {
    const call = new Call(this.token);
    const check = (end: number) =>
      Promise.all(
        this.options.names.map((name) =>
          this.#parts.commands.ask(name, ['LOCK.CHECK', name, this.token], call, end),
        ),
      );
    const lefts = await this.#parts.commands.retry(
      check,
      call,
      now() + this.#parts.commands.timeoutMs,
    );
    return lefts.every((left) => Number(left) > 0);
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
    this.fence = hold.fence;
    this.#hold = hold;
  }

  /** Token, by which any client can extend or release this grant. */
  get token(): string {
    return this.#hold.token;
  }

  /** True if the grant ended before its release. */
  get lost(): boolean {
    return this.#hold.isLost;
  }

  /** Signal that is aborted with a LockLostError when the grant is lost. */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  /** Returns the time in ms until the loss if the lease isn't renewed, or 0 if the grant ended. */
  left(): number {
    return this.#hold.state !== 'held' ? 0 : Math.max(0, this.#hold.deadline - now());
  }

  /**
   * Releases the lock. Returns false if it had been lost. Throws a NotHeldError if the grant was
   * released before, and an UnavailableError if no server could be asked: the release goes on in
   * the background then.
   */
  async release(): Promise<boolean> {
    return this.#hold.release();
  }

  /** Lets the lease end in `leaseMs`, or later. Returns false if the lock was lost. */
  async extend(leaseMs: number): Promise<boolean> {
    return this.#hold.extend(leaseMs);
  }

  /** Asks the server whether this grant holds all its keys. */
  async owned(): Promise<boolean> {
    return this.#hold.isOwned();
  }

  /** Leaves the grant to another process, which adopts it. It isn't renewed here any more. */
  detach() {
    this.#hold.detach();
  }

  /** @internal Leaves the grant to whoever has its token. Returns the command that ends it. */
  handOver(): Word[] {
    this.#hold.detach();
    return this.#hold.lastWords();
  }

  /**
   * Runs `work`, and releases the lock after it. A loss aborts the signal, and rejects with a
   * LockLostError once the work has ended, unless the work fails by itself.
   */
  async using<T>(work: Work<T>): Promise<T> {
    callback('work', work);
    this.#hold.refuseReleased();
    const { signal } = this;
    let result: T;
    try {
      signal.throwIfAborted();
      result = await work(this, signal);
    } catch (error) {
      await this.#hold.endBlock();
      throw isAbort(error, signal) ? signal.reason : error;
    }
    await this[Symbol.asyncDispose]();
    return result;
  }

  /** Ends a block like `using`. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!(await this.#hold.endBlock())) throw lossError();
  }

  toJSON(): GrantState {
    const state = this.lost ? 'lost' : this.#hold.state !== 'held' ? 'released' : 'held';
    return { keys: this.keys, state, fence: this.fence };
  }

  [inspect.custom](): string {
    return `Grant ${inspect(this.toJSON())}`;
  }
}

/** The work of a guarded block. */
export type Work<T> = (grant: Grant, signal: AbortSignal) => T | Promise<T>;

/** Returns true if work failed because the signal was aborted. */
const isAbort = (error: unknown, signal: AbortSignal) =>
  signal.aborted &&
  (error === signal.reason || (error instanceof Error && error.name === 'AbortError'));
