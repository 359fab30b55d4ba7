/** Locks and their factory. */

import { Acquire, type Granted } from './acquire.js';
import { Commands } from './commands.js';
import { Call, type Line } from './connection.js';
import { NotAcquiredError } from './errors.js';
import { type Grant, Hold, type Parts, type Work } from './grant.js';
import { tell, warn } from './observer.js';
import {
  type AcquireOptions,
  callback,
  checkObject,
  checkToken,
  type Keys,
  limitOf,
  type LockOptions as OptionsOfLock,
  Options,
} from './options.js';
import { type Link, Servers } from './servers.js';
import { now } from './time.js';

export type Outcome = 'granted' | 'not acquired' | 'cancelled' | 'failed';

export type LockOptions = OptionsOfLock<Grant>;

/** Hooks for logs, metrics and traces. An exception of a hook is only a warning. */
export interface Observer {
  /** Called after an acquire that didn't get the lock at once. */
  waited?(lock: Lock, ms: number, outcome: Outcome): void;
  granted?(grant: Grant): void;
  /** Called once for each loss. */
  lost?(grant: Grant): void;
  /** Called once for each outage that ends no call. Default: a warning. */
  unavailable?(error: Error): void;
}

export interface LocksOptions {
  /** Longest time of each call that doesn't wait for a lock. Default: 1000. */
  commandTimeoutMs?: number | undefined;
  observer?: Observer | undefined;
}

const notAcquired = () => new NotAcquiredError('another client had the lock all the time');

/** The parts that all locks of one `Locks` share. */
interface Shared extends Parts {
  readonly observer: Observer;
}

/** A lock: keys and options. All tasks may share it, because it has no state. */
export class Lock {
  readonly keys: readonly string[];
  readonly #shared: Shared;
  readonly #options: Options;

  /** @internal */
  constructor(shared: Shared, options: Options) {
    this.keys = options.keys;
    this.#shared = shared;
    this.#options = options;
  }

  /**
   * Returns a grant, or undefined if another client had the lock until the limit was over. Throws
   * an UnavailableError if no server could be asked until then.
   */
  async acquire(options: AcquireOptions = {}): Promise<Grant | undefined> {
    const limitMs = limitOf(options, this.#options);
    const { signal } = options;
    const { commands, observer } = this.#shared;
    const began = now();
    const acquire = new Acquire(commands, this.#options, limitMs, signal);
    let outcome: Outcome = 'failed';
    try {
      const granted = await acquire.run();
      outcome = granted ? 'granted' : 'not acquired';
      return granted && this.granted(granted);
    } catch (error) {
      if (signal?.aborted) outcome = 'cancelled';
      throw error;
    } finally {
      if (observer.waited && (acquire.hasWaited || outcome !== 'granted'))
        tell(() => observer.waited!(this, now() - began, outcome));
    }
  }

  /** Tries once. Returns a grant, or undefined if another client has the lock. */
  async tryAcquire(options: Pick<AcquireOptions, 'signal'> = {}): Promise<Grant | undefined> {
    checkObject('options', options);
    return this.acquire({ ...options, waitMs: 0 });
  }

  /**
   * Runs `work` under the lock. Throws a NotAcquiredError if another client had the lock until the
   * limit was over. A loss aborts the signal, and rejects with a LockLostError once the work has
   * ended.
   */
  async using<T>(work: Work<T>, options: AcquireOptions = {}): Promise<T> {
    callback('work', work);
    const grant = await this.acquire(options);
    if (!grant) throw notAcquired();
    return grant.using(work);
  }

  /** @internal Returns the grant of a token that the server knows, or may know. */
  granted(granted: Granted): Grant {
    const { observer } = this.#shared;
    const { grant } = new Hold(this.#shared, this.#options, granted);
    if (observer.granted) tell(() => observer.granted!(grant));
    return grant;
  }

  /** @internal Returns the grant of a token that another process acquired, unless it has ended. */
  async adopt(token: string, fence: number): Promise<Grant | undefined> {
    const { name, firstLeaseMs, session } = this.#options;
    const { commands } = this.#shared;
    const call = new Call(token);
    const words = this.#options.extend(token, firstLeaseMs);
    const extend = (end: number) => commands.holdsAll(this.#options, words, call, end);
    if (!(await commands.retryBriefly(name, extend, call))) return undefined;
    let line: Line | undefined;
    let isHeld = !session;
    const tie = async () => {
      line = commands.servers.openTo(name, commands.servers.holds);
      const end = now() + commands.servers.attemptMs;
      isHeld = await commands.holdsAll(this.#options, [...words, 'SESSION'], call, end, line);
    };
    try {
      // Sent only once, because a late one would move the tie to its closed connection.
      if (session) await commands.retry(name, tie, call, now());
    } finally {
      if (!isHeld) line?.close();
    }
    // A command of the first process may still arrive.
    const granted = { token, fence, sentAt: call.sentAt, isUnclear: true, line };
    return isHeld ? this.granted(granted) : undefined;
  }
}

/** Factory of locks over one client. */
export class Locks {
  readonly #servers: Servers;
  readonly #shared: Shared;

  /** @internal */
  constructor(of: Link | Servers, { commandTimeoutMs, observer = {} }: LocksOptions) {
    checkObject('observer', observer);
    this.#servers = of instanceof Servers ? of : new Servers(of, commandTimeoutMs);
    const unavailable = (error: unknown) =>
      tell(() => (observer.unavailable ?? warn).call(observer, error as Error));
    const commands = new Commands(this.#servers, unavailable);
    this.#shared = { commands, observer, held: new Set() };
  }

  /** @internal Returns locks on the same connections, with an observer of their own. */
  observedBy(observer: Observer): Locks {
    return new Locks(this.#servers, { observer });
  }

  /** Returns a lock. Several keys are granted together or not at all. */
  lock(keys: Keys, options: LockOptions = {}): Lock {
    return new Lock(this.#shared, new Options(keys, this.#servers.link.prefix, options));
  }

  /** Returns a grant that another process acquired and detached, or undefined if it has ended. */
  async adopt(
    keys: Keys,
    token: string,
    fence: number,
    options: LockOptions = {},
  ): Promise<Grant | undefined> {
    checkToken(token);
    if (!Number.isSafeInteger(fence)) throw new TypeError('fence: expected a whole number');
    return this.lock(keys, options).adopt(token, fence);
  }

  /**
   * Returns what `read` returns, or if that is undefined or null what `compute` returns: one caller
   * computes at a time. The others wait, and then read all at once. So `compute` must store its
   * result where `read` finds it. Throws a NotAcquiredError if the option `waitMs` was over before
   * there was a result.
   */
  async once<T>(
    keys: Keys,
    read: () => Promise<T | undefined | null> | T | undefined | null,
    compute: () => Promise<T> | T,
    options: LockOptions = {},
  ): Promise<T> {
    callback('read', read);
    callback('compute', compute);
    const lock = this.lock(keys, options);
    const readers = this.lock(keys, { ...options, shared: true });
    const first = await read();
    if (first != null) return first;
    const work = async () => (await read()) ?? compute();
    const grant = await lock.tryAcquire();
    if (grant) return grant.using(work);
    const result = await readers.using(() => read());
    // If the one that computed failed, the others take turns.
    return result ?? lock.using(work);
  }

  /** Releases all grants of these locks. Returns how many of them still held. */
  async releaseAll(): Promise<number> {
    const releases = [...this.#shared.held].map(({ grant }) => grant.release());
    const ends = await Promise.allSettled(releases);
    const failed = ends.find((end) => end.status === 'rejected');
    if (failed) throw failed.reason;
    return ends.filter((end) => end.status === 'fulfilled' && end.value).length;
  }
}
