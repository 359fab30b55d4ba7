import { inspect } from 'node:util';

import type { Backend } from './claim.js';
import { Connection, type Link } from './connection.js';
import { NotAcquiredError } from './errors.js';
import { Held, type Hooks, Lock, type Outcome } from './lock.js';
import { type AcquireOptions, checkObject, keysOf, type LockOptions, termsOf, timeMs } from './options.js';
import { Pace } from './time.js';
import { Turns } from './turns.js';

type Keys = string | readonly string[];

/** Hooks for logs, metrics and traces. An exception of a hook is only a warning. */
export interface Observer {
  /** Called at the end of an acquire that wasn't granted at once. */
  waited?(lock: Lock, ms: number, outcome: Outcome): void;
  granted?(lock: Lock): void;
  lost?(lock: Lock): void;
  /** Called when a call without a time limit, or in the background, finds no server. Default: a warning. */
  unavailable?(error: Error): void;
}

export interface LocksOptions {
  /** Longest time of a call that doesn't wait for a lock, and of each command. Default: 1000. */
  commandTimeoutMs?: number | undefined;
  observer?: Observer | undefined;
}

/** Longest time without a reply before a client looks for a server that has taken over. */
const LONGEST_ATTEMPT_MS = 1000;

const warn = (error: unknown) => process.emitWarning(error instanceof Error ? error.message : String(error), 'RedisLockWarning');

/** Runs a hook of the user's. Its failure must not harm a lock. */
export function run(hook: () => unknown) {
  try {
    // An async hook fails with its promise.
    void Promise.resolve(hook()).catch(warn);
  } catch (error) {
    warn(error);
  }
}

/** Connections to a client's server, and the parts that go with them. */
type Shared = Omit<Backend, 'report'>;

/** @internal */
export function backendOf(link: Link, commandTimeoutMs = 1000): Shared {
  const timeoutMs = timeMs('commandTimeoutMs', commandTimeoutMs);
  const attemptMs = link.failsOver ? Math.min(timeoutMs, LONGEST_ATTEMPT_MS) : timeoutMs;
  const turns = new Turns();
  const connections = new Set<Connection>();
  function connect(replaced: () => void) {
    const connection = new Connection(link, attemptMs, replaced);
    connections.add(connection);
    return connection;
  }
  function disconnect(connection: Connection) {
    connections.delete(connection);
    connection.close();
  }
  const connection = connect(turns.missed);
  link.onClose(() => {
    connections.forEach((each) => each.suspend());
    turns.missed();
  });
  return { link, connection, turns, commandTimeoutMs: timeoutMs, attemptMs, pace: new Pace(), connect, disconnect };
}

/** Factory of locks over one client. */
export class Locks {
  readonly #backend: Backend;
  readonly #held = new Held();
  readonly #hooks: Hooks;

  /** @internal */
  constructor(shared: Shared, observer: Observer = {}) {
    checkObject('observer', observer);
    const report = (error: unknown) => run(() => (observer.unavailable ?? warn).call(observer, error as Error));
    this.#backend = { ...shared, report };
    this.#hooks = {
      waited: (lock, ms, outcome) => observer.waited && run(() => observer.waited!(lock, ms, outcome)),
      granted: (lock) => observer.granted && run(() => observer.granted!(lock)),
      lost(lock, onLost) {
        if (onLost) run(() => onLost(lock));
        if (observer.lost) run(() => observer.lost!(lock));
      },
    };
  }

  /** @internal Returns locks on the same connections, with an observer of their own. */
  observedBy(observer: Observer): Locks {
    return new Locks(this.#backend, observer);
  }

  /** Returns a lock that is not acquired yet. Several keys are granted together or not at all. */
  lock(keys: Keys, options: LockOptions = {}): Lock {
    const terms = termsOf(options);
    return new Lock(this.#backend, this.#held, this.#hooks, keysOf(keys), terms, options.onLost);
  }

  /**
   * Returns an acquired lock. Waits without a limit unless `waitMs` is given. Throws a
   * NotAcquiredError if another owner had the lock until that time was over.
   */
  async acquire(keys: Keys, options: LockOptions & AcquireOptions = {}): Promise<Lock> {
    checkObject('options', options);
    const { signal, ...ofLock } = options;
    const lock = this.lock(keys, ofLock);
    if ((await lock.acquire({ signal })) !== undefined) return lock;
    throw new NotAcquiredError(`not free in time: ${lock.keys.join(', ')}`);
  }

  /** Runs `work` under a lock. Throws a LockLostError if the lock was lost before the work was done. */
  async using<T>(
    keys: Keys,
    options: LockOptions & AcquireOptions,
    work: (signal: AbortSignal, lock: Lock) => Promise<T> | T,
  ): Promise<T> {
    if (typeof work !== 'function') throw new TypeError(`work: expected a function, not ${typeof work}`);
    const lock = await this.acquire(keys, options);
    let result: T;
    try {
      result = await work(lock.signal, lock);
    } catch (error) {
      await lock.endBlock();
      throw error;
    }
    await lock[Symbol.asyncDispose]();
    return result;
  }

  /** Releases all locks that are held, and returns how many of them weren't lost. */
  async releaseAll(): Promise<number> {
    const released = await Promise.all(this.#held.locks().map((lock) => lock.releaseAll()));
    return released.filter(Boolean).length;
  }

  [inspect.custom](): string {
    return `Locks { held: ${inspect(this.#held.locks().map(({ keys }) => keys))} }`;
  }
}
