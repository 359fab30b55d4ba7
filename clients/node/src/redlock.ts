/**
 * The interface of npm's `redlock` 5, with the module's commands. Waiters are served in their order
 * instead of polling every `retryDelay`. A key that npm's redlock holds counts as locked.
 */

import { EventEmitter } from 'node:events';
import { inspect } from 'node:util';
import type { Cluster, Redis } from 'ioredis';

import { LockLostError, NotHeldError } from './errors.js';
import type { Grant } from './grant.js';
import type { LockOptions, Locks } from './locks.js';
import type { NodeRedis } from './node-redis.js';
import { tell } from './observer.js';
import { checkObject, keysOf, timeMs } from './options.js';
import { isOfAnotherType } from './outages.js';
import { Bell, ignore, now } from './time.js';

/** Part of ioredis in use, so that programs with node-redis need no types of ioredis. */
export interface IoredisClient {
  readonly status: string;
  readonly isCluster: boolean;
  quit(): Promise<unknown>;
}
export type Client = IoredisClient | NodeRedis;

export interface Settings {
  /** Part of the duration by which `expiration` is earlier than the lease's end. Default: 0.01. */
  readonly driftFactor: number;
  /**
   * Retries that the time limit of an acquire is made of: 0 tries once, -1 sets no limit. Default:
   * 10.
   */
  readonly retryCount: number;
  /** Time in ms of each retry. Default: 200. */
  readonly retryDelay: number;
  /** Further time in ms of each retry. Default: 100. */
  readonly retryJitter: number;
  /** Remaining time in ms at which `using` extends the lock at the latest. Default: 500. */
  readonly automaticExtensionThreshold: number;
}

/** Summary of an attempt, which has one client. */
export interface ExecutionStats {
  readonly membershipSize: number;
  readonly quorumSize: number;
  readonly votesFor: Set<Client>;
  readonly votesAgainst: Map<Client, Error>;
}

export interface ExecutionResult {
  readonly attempts: readonly Promise<ExecutionStats>[];
  readonly start: number;
}

/**
 * Error of a resource that another owner has. It is the cause and the vote of an ExecutionError.
 */
export class ResourceLockedError extends Error {
  override readonly name = 'ResourceLockedError';
}

/** Error of a call without success. Its `cause` tells a locked resource from an outage. */
export class ExecutionError extends Error {
  override readonly name = 'ExecutionError';

  constructor(
    message: string,
    readonly attempts: readonly Promise<ExecutionStats>[],
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** Signal that `using` aborts when the lock is lost, after it has set the error. */
export type RedlockAbortSignal = AbortSignal & { error?: Error };

export interface UsingContext {
  /** Lock that is held, with its present expiration. */
  readonly lock: Lock;
}
type Routine<T> = (signal: RedlockAbortSignal, context: UsingContext) => Promise<T>;

/** A grant. A lock that another process made can be released and extended by its `value`. */
export class Lock {
  #expiration: () => number;

  constructor(
    readonly redlock: Redlock,
    readonly resources: string[],
    /** Owner's token. Whoever knows it controls the lock. */
    readonly value: string,
    readonly attempts: readonly Promise<ExecutionStats>[],
    expiration: number | (() => number),
    /** Fence of the grant, greater than the fence of every earlier grant of these resources. */
    readonly fence?: number,
  ) {
    this.#expiration = typeof expiration === 'number' ? () => expiration : expiration;
  }

  /** Time at which the lock has ended, less the drift, like `Date.now()`. */
  get expiration(): number {
    return this.#expiration();
  }

  set expiration(time: number) {
    this.#expiration = () => time;
  }

  release(): Promise<ExecutionResult> {
    return this.redlock.release(this);
  }

  extend(duration: number): Promise<Lock> {
    return this.redlock.extend(this, duration);
  }

  /** Returns a picture of the lock without its token, which controls the lock. */
  toJSON() {
    const { resources, expiration, fence } = this;
    return { resources, expiration, fence };
  }

  [inspect.custom](): string {
    return `Lock ${inspect(this.toJSON())}`;
  }
}

const NO_QUORUM = 'The operation was unable to achieve a quorum during its retry window';
const LEAST_MARGIN_MS = 100;
/** Precision of the server's times. */
const PRECISION_MS = 2;
/** Most entries of `attempts`: a great `retryCount` would fill the memory. */
const MOST_ATTEMPTS = 1000;
/** Least time for which the release of another process's lock is repeated. */
const LEAST_RELEASE_MS = 1000;

const defaults: Settings = {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 100,
  automaticExtensionThreshold: 500,
};

const isEndless = (retryCount: number) => retryCount === -1 || retryCount === Infinity;

function settingsOf(given: Partial<Settings> = {}, base: Settings): Settings {
  checkObject('settings', given);
  const settings: { -readonly [name in keyof Settings]: number } = { ...base };
  for (const name of Object.keys(defaults) as (keyof Settings)[]) {
    const value: unknown = given[name] === undefined ? base[name] : given[name];
    if (typeof value !== 'number')
      throw new TypeError(`${name}: expected a number, not ${typeof value}`);
    const isOther = name !== 'retryCount' || !isEndless(value);
    const isValid = name === 'retryCount' ? Number.isInteger(value) : value < Infinity;
    if (isOther && !(isValid && value >= 0))
      throw new RangeError(`${name}: ${value} is out of range`);
    settings[name] = value;
  }
  return settings;
}

function limitMs({ retryCount, retryDelay, retryJitter }: Settings): number {
  if (isEndless(retryCount)) return Infinity;
  return Math.min(retryCount * (retryDelay + retryJitter), Number.MAX_SAFE_INTEGER);
}

function checkAcquire(resources: unknown, duration: unknown) {
  if (!Array.isArray(resources)) throw new TypeError('resources: expected an array of strings');
  keysOf(resources, 'resources');
  checkDuration(duration);
}

function checkDuration(duration: unknown) {
  if (!Number.isInteger(duration))
    throw new RangeError('Duration must be an integer value in milliseconds.');
  timeMs('duration', duration);
}

function checkLock(lock: unknown) {
  if (!(lock instanceof Lock)) throw new TypeError('lock: expected a Lock of this package');
}

const isObject = (it: unknown): it is object => typeof it === 'object' && it !== null;

/**
 * Locks of each client. A program may make many Redlocks of one client, which share connections.
 */
const locksOfClients = new WeakMap<Client, Locks>();

/** Loads only the entry of the client's library, because the other one may not be installed. */
function newLocks(client: Client): Locks {
  if ('isCluster' in client) {
    const { Locks } = require('./ioredis.js') as typeof import('./ioredis.js');
    return new Locks(client as Redis | Cluster);
  }
  const { Locks } = require('./node-redis.js') as typeof import('./node-redis.js');
  return new Locks(client);
}

function onlyClient(clients: unknown): Client {
  if (!isObject(clients) || !(Symbol.iterator in clients))
    throw new TypeError('clients: expected an array with one client');
  const all = [...new Set(clients as Iterable<unknown>)];
  if (all.length === 0)
    throw new RangeError('Redlock must be instantiated with at least one redis client.');
  if (all.length > 1) {
    throw new RangeError(
      `clients: expected one client (of a server, of Sentinel or of a cluster), not ${all.length}: ` +
        'this library takes no lock on several independent servers',
    );
  }
  if (!isObject(all[0])) throw new TypeError('clients: expected a client of ioredis or node-redis');
  return all[0] as Client;
}

/**
 * Locks with the interface of npm's `redlock` 5, on one server, with Sentinel or on a cluster. It
 * emits `error` for each call without success, and for outages that a call survives.
 */
export class Redlock extends EventEmitter {
  readonly clients: Set<Client>;
  readonly settings: Settings;
  readonly #client: Client;
  readonly #locks: Locks;
  /** Grants by the values of their locks. A lock that the program drops lasts for its lease. */
  readonly #grants = new Map<string, Grant>();

  /** `scripts` can only be left out or empty, because there is no script. */
  constructor(
    clients: Iterable<Client>,
    settings: Partial<Settings> = {},
    scripts: Record<string, never> = {},
  ) {
    super();
    // Without a listener, Node.js would end the process upon the event.
    this.on('error', ignore);
    this.#client = onlyClient(clients);
    this.clients = new Set([this.#client]);
    this.settings = settingsOf(settings, defaults);
    if (Object.keys(scripts).length > 0)
      throw new TypeError('scripts: expected none, because the locks are commands of the server');
    const shared = locksOfClients.get(this.#client) ?? newLocks(this.#client);
    locksOfClients.set(this.#client, shared);
    this.#locks = shared.observedBy({ unavailable: (error) => this.#tell(error) });
  }

  /** Closes the client. */
  async quit(): Promise<void> {
    const client = this.#client as { quit?(): Promise<unknown>; close?(): Promise<unknown> };
    await (client.quit ? client.quit() : client.close?.());
  }

  /**
   * Acquires all resources or none. Waits in the server's queue, until the retries would be over.
   */
  async acquire(
    resources: string[],
    duration: number,
    settings?: Partial<Settings>,
  ): Promise<Lock> {
    checkAcquire(resources, duration);
    const all = settingsOf(settings, this.settings);
    const { grant, attempts } = await this.#acquire(resources, this.#unrenewed(duration), all);
    return this.#lockOf(grant, resources, attempts, expiryOf(grant, duration, all));
  }

  /** Releases a lock. If no server replies, goes on in the background until its expiration. */
  async release(lock: Lock, settings?: Partial<Settings>): Promise<ExecutionResult> {
    checkLock(lock);
    const all = settingsOf(settings, this.settings);
    const grant = this.#grantOf(lock, Math.max(lock.expiration - Date.now(), LEAST_RELEASE_MS));
    lock.expiration = 0;
    this.#grants.delete(lock.value);
    return this.#execute(lock.resources, all, () => grant.release());
  }

  /** Sets the lease, and returns the lock that replaces the existing one. */
  async extend(existing: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock> {
    checkLock(existing);
    checkDuration(duration);
    const all = settingsOf(settings, this.settings);
    if (existing.expiration < Date.now())
      throw new ExecutionError('Cannot extend an already-expired lock.', []);
    const { resources } = existing;
    const grant = this.#grantOf(existing, duration);
    const { attempts } = await this.#execute(resources, all, () => grant.extend(duration));
    existing.expiration = 0;
    return this.#lockOf(grant, resources, attempts, expiryOf(grant, duration, all));
  }

  /** Runs a routine under a lock that is extended until the routine has ended. */
  async using<T>(
    resources: string[],
    duration: number,
    settings: Partial<Settings>,
    routine?: Routine<T>,
  ): Promise<T>;
  async using<T>(resources: string[], duration: number, routine: Routine<T>): Promise<T>;
  async using<T>(
    resources: string[],
    duration: number,
    settingsOrRoutine: Partial<Settings> | Routine<T> | undefined,
    optionalRoutine?: Routine<T>,
  ): Promise<T> {
    checkAcquire(resources, duration);
    const routine = optionalRoutine ?? settingsOrRoutine;
    if (typeof routine !== 'function') throw new TypeError('INVARIANT: routine is not a function.');
    const all = settingsOf(
      typeof settingsOrRoutine === 'function' ? {} : settingsOrRoutine,
      this.settings,
    );
    const earliestMs = duration - all.automaticExtensionThreshold;
    if (earliestMs < LEAST_MARGIN_MS) {
      throw new RangeError(
        'A lock `duration` must be at least 100ms greater than the `automaticExtensionThreshold` setting.',
      );
    }

    const controller = new AbortController();
    const signal: RedlockAbortSignal = controller.signal;
    const lose = (loss: unknown) => {
      signal.error ??= this.#failure(loss, 1);
      controller.abort(signal.error);
      return signal.error;
    };
    const { grant, attempts } = await this.#acquire(
      resources,
      { leaseMs: duration, maxHoldMs: Infinity, onLost: ({ signal }) => lose(signal.reason) },
      all,
    );
    const lock = this.#lockOf(grant, resources, attempts, () => expiryOf(grant, duration, all));
    const extension =
      earliestMs < duration / 3
        ? setInterval(() => grant.extend(duration).catch(ignore), earliestMs).unref()
        : undefined;
    try {
      return await grant.using(() => routine(signal, { lock }));
    } catch (error) {
      throw error instanceof LockLostError ? lose(error) : error;
    } finally {
      clearInterval(extension);
      this.#grants.delete(lock.value);
    }
  }

  /** Returns the options of a lock that ends with its duration. */
  #unrenewed(duration: number): LockOptions {
    const onLost = ({ token }: Grant) => this.#grants.delete(token);
    return { leaseMs: duration, marginMs: 0, renew: false, maxHoldMs: Infinity, onLost };
  }

  /** Returns the grant of a lock, which another process may have made. */
  #grantOf({ resources, value, fence = 0 }: Lock, duration: number): Grant {
    const known = this.#grants.get(value);
    if (known) return known;
    keysOf(resources, 'resources');
    const recipe = this.#locks.lock(resources, this.#unrenewed(duration));
    const grant = recipe.granted({ token: value, fence, sentAt: now(), isUnclear: true });
    this.#grants.set(value, grant);
    return grant;
  }

  #lockOf(
    grant: Grant,
    resources: string[],
    attempts: ExecutionResult['attempts'],
    expiration: number | (() => number),
  ): Lock {
    this.#grants.set(grant.token, grant);
    return new Lock(this, resources, grant.token, attempts, expiration, grant.fence);
  }

  /**
   * Acquires within the time limit. Polls only while npm's redlock holds the lock, because that has
   * no queue.
   */
  async #acquire(resources: string[], options: LockOptions, settings: Settings) {
    const recipe = this.#locks.lock(resources, options);
    const until = now() + limitMs(settings);
    let grant: Grant | undefined;
    const { attempts } = await this.#execute(resources, settings, async () => {
      let leftMs = limitMs(settings);
      do {
        try {
          grant = await recipe.acquire({ waitMs: leftMs });
          return grant !== undefined;
        } catch (error) {
          if (!isOfAnotherType(error)) throw error;
        }
        const pauseMs = settings.retryDelay + (Math.random() * 2 - 1) * settings.retryJitter;
        await new Bell().wait(Math.min(pauseMs, leftMs), {});
        leftMs = until - now();
      } while (leftMs > 0);
      return false;
    });
    return { grant: grant!, attempts };
  }

  /** Makes a call, and returns its vote. Throws an ExecutionError if the call had no success. */
  async #execute(
    { length }: string[],
    { retryCount }: Settings,
    call: () => Promise<boolean>,
  ): Promise<ExecutionResult> {
    const start = Date.now();
    const attempts = isEndless(retryCount) ? 1 : Math.min(retryCount + 1, MOST_ATTEMPTS);
    try {
      if (await call()) return { attempts: [this.#vote()], start };
    } catch (error) {
      // A string is a lock of npm's redlock.
      if (!(error instanceof NotHeldError || isOfAnotherType(error)))
        throw this.#failure(error, attempts);
    }
    const text = `The operation was applied to: 0 of the ${length} requested resources.`;
    throw this.#failure(new ResourceLockedError(text), attempts);
  }

  #failure(reason: unknown, attempts: number): ExecutionError {
    const error = reason instanceof Error ? reason : new Error(String(reason));
    this.#tell(error);
    const text = error instanceof ResourceLockedError ? '.' : `: ${error.message}`;
    return new ExecutionError(NO_QUORUM + text, Array(attempts).fill(this.#vote(error)), {
      cause: error,
    });
  }

  /** Returns the summary of an attempt, with the reason if it had no success. */
  #vote(reason?: Error): Promise<ExecutionStats> {
    const votesFor = new Set(reason ? [] : [this.#client]);
    const votesAgainst = new Map(reason ? [[this.#client, reason]] : []);
    return Promise.resolve({ membershipSize: 1, quorumSize: 1, votesFor, votesAgainst });
  }

  #tell(error: Error) {
    tell(() => this.emit('error', error));
  }
}

export default Redlock;

/** Returns the time at which a lock ends, less the drift, or 0 if it isn't held. */
function expiryOf(grant: Grant, duration: number, { driftFactor }: Settings): number {
  const leftMs = Math.min(grant.left(), duration);
  if (leftMs <= 0) return 0;
  return Math.floor(Date.now() + leftMs) - Math.round(driftFactor * duration) - PRECISION_MS;
}
