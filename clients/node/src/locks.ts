/** Locks and their factory. */

import { randomBytes } from 'node:crypto';
import { inspect } from 'node:util';

import { Acquire } from './acquire.js';
import { Commands } from './commands.js';
import { Crowds } from './crowd.js';
import { NotAcquiredError } from './errors.js';
import { type Grant, Hold, type Parts, type Work } from './grant.js';
import { Keeper } from './keeper.js';
import { Messages } from './messages.js';
import { tell, warn } from './observer.js';
import {
  type AcquireOptions,
  callback,
  checkObject,
  checkToken,
  type Keys,
  limitOf,
  Options,
  type Settings,
  timeMs,
} from './options.js';
import { type Link, Servers } from './servers.js';
import { now } from './time.js';

export type Outcome = 'granted' | 'not acquired' | 'cancelled' | 'failed';

export interface LockOptions extends Settings {
  /** Callback that runs once for each loss. */
  onLost?: ((grant: Grant) => void) | undefined;
}

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

const TIMEOUT_MS = 1000;
/** Longest time of one attempt of several: there is time for another one. */
export const ATTEMPT_MS = 1000;

const TOKEN_BYTES = 16;
let randomness = Buffer.alloc(0);

/** Returns 128 random bits in hex. perf: the system's generator takes as long for many tokens. */
function newToken(): string {
  if (randomness.length === 0) randomness = randomBytes(64 * TOKEN_BYTES);
  const token = randomness.toString('hex', 0, TOKEN_BYTES);
  randomness = randomness.subarray(TOKEN_BYTES);
  return token;
}

const notAcquired = () => new NotAcquiredError('another client had the lock all the time');

/** The parts that all locks of one `Locks` share. */
interface Shared extends Parts {
  readonly crowds: Crowds;
  readonly observer: Observer;
}

/** A lock: keys and options. All tasks may share it, because it has no state. */
export class Lock {
  readonly #shared: Shared;
  readonly #options: Options;
  readonly #onLost: LockOptions['onLost'];

  /** @internal */
  constructor(shared: Shared, options: Options, onLost: LockOptions['onLost']) {
    this.#shared = shared;
    this.#options = options;
    this.#onLost = onLost;
  }

  get keys(): readonly string[] {
    return this.#options.keys;
  }

  /**
   * Returns a grant, or undefined if another client had the lock until the limit was over. Throws
   * an UnavailableError if no server could be asked until then.
   */
  async acquire(options: AcquireOptions = {}): Promise<Grant | undefined> {
    return this.#acquire(options, limitOf(options, this.#options));
  }

  /** Tries once. Returns a grant, or undefined if another client has the lock. */
  async tryAcquire(options: Pick<AcquireOptions, 'signal'> = {}): Promise<Grant | undefined> {
    limitOf(options, this.#options);
    return this.#acquire(options, 0);
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

  async #acquire({ signal }: AcquireOptions, limitMs: number): Promise<Grant | undefined> {
    const { commands, crowds } = this.#shared;
    const began = now();
    const token = newToken();
    const hold = (fence: number) => this.hold(token, fence);
    const acquire = new Acquire(commands, crowds, {
      options: this.#options,
      token,
      limitMs,
      signal,
      hold,
    });
    let outcome: Outcome = 'failed';
    try {
      const held = await acquire.run();
      outcome = held ? 'granted' : 'not acquired';
      return held && this.granted(held);
    } catch (error) {
      if (signal?.aborted) outcome = 'cancelled';
      throw error;
    } finally {
      const { observer } = this.#shared;
      if (observer.waited && (acquire.hasWaited || outcome !== 'granted')) {
        tell(() => observer.waited!(this, now() - began, outcome));
      }
    }
  }

  /** @internal */
  hold(token: string, fence: number): Hold {
    return new Hold(this.#shared, this.#options, this.#onLost, token, fence);
  }

  /** @internal */
  granted(hold: Hold): Grant {
    const { keeper, observer } = this.#shared;
    const { grant } = hold;
    keeper.hold(hold);
    if (observer.granted) tell(() => observer.granted!(grant));
    return grant;
  }

  [inspect.custom](): string {
    return `Lock { keys: ${inspect(this.keys)} }`;
  }
}

/** Factory of locks over one client. */
export class Locks {
  /** @internal */
  readonly commands: Commands;
  readonly #shared: Shared;

  /** @internal */
  constructor(servers: Servers, messages: Messages, timeoutMs: number, observer: Observer) {
    const unavailable = (error: unknown) =>
      tell(() => (observer.unavailable ?? warn).call(observer, error as Error));
    this.commands = new Commands(servers, messages, timeoutMs, unavailable);
    const tellLost = (grant: Grant) => observer.lost && tell(() => observer.lost!(grant));
    this.#shared = {
      commands: this.commands,
      keeper: new Keeper(),
      crowds: new Crowds(),
      observer,
      tellLost,
    };
  }

  /** @internal Returns locks on the same connections, with an observer of their own. */
  observedBy(observer: Observer): Locks {
    const { servers, messages, timeoutMs } = this.commands;
    return new Locks(servers, messages, timeoutMs, observer);
  }

  /** Returns a lock. Several keys are granted together or not at all. */
  lock(keys: Keys, options: LockOptions = {}): Lock {
    checkObject('options', options);
    const { onLost, ...settings } = options;
    if (onLost !== undefined) callback('onLost', onLost);
    return new Lock(
      this.#shared,
      new Options(keys, this.commands.servers.link.prefix, settings),
      onLost,
    );
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
    const lock = this.lock(keys, options);
    const hold = lock.hold(token, fence);
    // A command of the first process may still arrive.
    hold.isUnclear = true;
    return (await hold.takeOver(hold.options.firstLeaseMs)) ? lock.granted(hold) : undefined;
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
    const first = (await read()) ?? undefined;
    if (first !== undefined) return first;
    let grant = await lock.tryAcquire();
    if (!grant) {
      const result = (await readers.using(() => read())) ?? undefined;
      if (result !== undefined) return result;
      // The one that computed failed, so the others take turns.
      grant = await lock.acquire();
    }
    if (!grant) throw notAcquired();
    return grant.using(async () => (await read()) ?? compute());
  }

  /** Releases all grants of these locks. Returns how many of them still held. */
  async releaseAll(): Promise<number> {
    const until = now() + this.commands.timeoutMs;
    const releases = [...this.#shared.keeper.held].map((hold) => hold.release(until));
    const ends = await Promise.allSettled(releases);
    const failed = ends.find((end) => end.status === 'rejected');
    if (failed) throw failed.reason;
    return ends.filter((end) => end.status === 'fulfilled' && end.value).length;
  }

  [inspect.custom](): string {
    return `Locks { held: ${inspect([...this.#shared.keeper.held].map(({ options }) => options.keys))} }`;
  }
}

/**
 * @internal Makes the parts of locks over a client. `linkTo` gets the time of an
 * attempt, which is at most `failoverMs`.
 */
export function connected(
  linkTo: (attemptMs: number) => Link,
  failoverMs: number,
  { commandTimeoutMs = TIMEOUT_MS, observer = {} }: LocksOptions,
): ConstructorParameters<typeof Locks> {
  checkObject('observer', observer);
  const timeoutMs = timeMs('commandTimeoutMs', commandTimeoutMs);
  const attemptMs = Math.min(Math.max(Math.min(timeoutMs, ATTEMPT_MS), timeoutMs / 3), failoverMs);
  const servers = new Servers(linkTo(attemptMs), attemptMs);
  return [servers, new Messages(servers), timeoutMs, observer];
}
