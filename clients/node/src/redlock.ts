/**
 * The interface of npm's `redlock` 5, with the module's commands. Waiters are served in their order
 * instead of polling every `retryDelay`. A key that npm's redlock holds counts as locked.
 */

import { EventEmitter } from 'node:events';
import { inspect } from 'node:util';
import type { Cluster, Redis } from 'ioredis';

import { NotHeldError, UnavailableError } from './errors.js';
import { isOfAnotherType } from './failures.js';
import type { Lock as OwnLock } from './lock.js';
import { type Locks, run } from './locks.js';
import type { NodeRedisClient, NodeRedisCluster, NodeRedisSentinel } from './node-redis.js';
import { keysOf, timeMs } from './options.js';
import { Bell, ignore, now } from './time.js';

/** Part of ioredis in use, so that programs with node-redis need no types of ioredis. */
export interface IoredisClient {
  readonly status: string;
  readonly isCluster: boolean;
  quit(): Promise<unknown>;
}
export type Client = IoredisClient | NodeRedisClient | NodeRedisCluster | NodeRedisSentinel;

export interface Settings {
  /** Part of the duration by which `expiration` is earlier than the lease's end. Default: 0.01. */
  readonly driftFactor: number;
  /** Retries that the time limit of an acquire is made of: 0 tries once, -1 sets no limit. Default: 10. */
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

/** Error of a resource that another owner has. It is the cause and the vote of an ExecutionError. */
export class ResourceLockedError extends Error {
  override readonly name = 'ResourceLockedError';
}

/** Error of a call without success. Its `cause` tells a locked resource from an outage. */
export class ExecutionError extends Error {
  override readonly name = 'ExecutionError';
  readonly attempts: readonly Promise<ExecutionStats>[];

  constructor(message: string, attempts: readonly Promise<ExecutionStats>[], options?: ErrorOptions) {
    super(message, options);
    this.attempts = attempts;
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
  readonly redlock: Redlock;
  readonly resources: string[];
  /** Owner's token. Whoever knows it controls the lock. */
  readonly value: string;
  readonly attempts: readonly Promise<ExecutionStats>[];
  /** Fence of the grant, greater than the fence of every earlier grant of these resources. */
  readonly fence: number | undefined;
  #expiration: () => number;

  constructor(
    redlock: Redlock,
    resources: string[],
    value: string,
    attempts: readonly Promise<ExecutionStats>[],
    expiration: number | (() => number),
    fence?: number,
  ) {
    this.redlock = redlock;
    this.resources = resources;
    this.value = value;
    this.attempts = attempts;
    this.fence = fence;
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

const defaults: Settings = {
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 100,
  automaticExtensionThreshold: 500,
};

const checks: { readonly [name in keyof Settings]: (value: number) => boolean } = {
  driftFactor: (value) => value >= 0 && value < Infinity,
  retryCount: (value) => value === -1 || value === Infinity || (Number.isInteger(value) && value >= 0),
  retryDelay: (value) => value >= 0 && value < Infinity,
  retryJitter: (value) => value >= 0 && value < Infinity,
  automaticExtensionThreshold: (value) => value >= 0 && value < Infinity,
};

function settingsOf(given: Partial<Settings> = {}, base: Settings): Settings {
  if (typeof given !== 'object' || given === null) throw new TypeError('settings: expected an object');
  const settings: { -readonly [name in keyof Settings]: number } = { ...base };
  for (const [name, isValid] of Object.entries(checks) as [keyof Settings, (value: number) => boolean][]) {
    const value: unknown = given[name];
    if (value === undefined) continue;
    if (typeof value !== 'number') throw new TypeError(`${name}: expected a number, not ${typeof value}`);
    if (!isValid(value)) throw new RangeError(`${name}: ${value} is out of range`);
    settings[name] = value;
  }
  return settings;
}

const isEndless = ({ retryCount }: Settings) => retryCount === -1 || retryCount === Infinity;

function limitMs(settings: Settings): number {
  if (isEndless(settings)) return Infinity;
  return Math.min(settings.retryCount * (settings.retryDelay + settings.retryJitter), Number.MAX_SAFE_INTEGER);
}

function checkDuration(duration: unknown) {
  if (!Number.isInteger(duration)) throw new RangeError('Duration must be an integer value in milliseconds.');
  timeMs('duration', duration);
}

function checkResources(resources: unknown) {
  if (!Array.isArray(resources)) throw new TypeError('resources: expected an array of strings');
  keysOf(resources, 'resources');
}

function checkLock(lock: unknown) {
  if (!(lock instanceof Lock)) throw new TypeError('lock: expected a Lock of this package');
}

const isObject = (it: unknown): it is object => typeof it === 'object' && it !== null;
const isOfIoredis = (client: object): client is IoredisClient => 'isCluster' in client;
const isClosed = (client: Client) => isOfIoredis(client) && client.status === 'end';

/** Locks of each client. A program may make many Redlocks of one client, which share connections. */
const locksOfClients = new WeakMap<Client, Locks>();

function locksOf(client: Client): Locks {
  const known = locksOfClients.get(client);
  if (known) return known;
  const made = newLocks(client);
  locksOfClients.set(client, made);
  return made;
}

/** Loads only the entry of the client's library, because the other one may not be installed. */
function newLocks(client: Client): Locks {
  if (isOfIoredis(client)) {
    const { Locks } = require('./ioredis.js') as typeof import('./ioredis.js');
    return new Locks(client as Redis | Cluster);
  }
  const { Locks } = require('./node-redis.js') as typeof import('./node-redis.js');
  return new Locks(client);
}

function onlyClient(clients: unknown): Client {
  if (!isObject(clients) || !(Symbol.iterator in clients)) throw new TypeError('clients: expected an array with one client');
  const all = [...new Set(clients as Iterable<unknown>)];
  if (all.length === 0) throw new RangeError('Redlock must be instantiated with at least one redis client.');
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
  readonly #owners = new WeakMap<Lock, OwnLock>();

  /** `scripts` can only be left out or empty, because there is no script. */
  constructor(clients: Iterable<Client>, settings: Partial<Settings> = {}, scripts: Record<string, never> = {}) {
    super();
    // Without a listener, Node.js would end the process upon the event.
    this.on('error', ignore);
    this.#client = onlyClient(clients);
    this.clients = new Set([this.#client]);
    this.settings = settingsOf(settings, defaults);
    if (Object.keys(scripts).length > 0) {
      throw new TypeError('scripts: expected none, because the locks are commands of the server');
    }
    this.#locks = locksOf(this.#client).observedBy({ unavailable: (error) => this.#tell(error) });
  }

  /** Closes the client. */
  async quit(): Promise<void> {
    const client = this.#client as { quit?(): Promise<unknown>; close?(): Promise<unknown> };
    await (client.quit ? client.quit() : client.close?.());
  }

  /** Acquires all resources or none. Waits in the server's queue, until the retries would be over. */
  async acquire(resources: string[], duration: number, settings?: Partial<Settings>): Promise<Lock> {
    checkResources(resources);
    checkDuration(duration);
    const all = settingsOf(settings, this.settings);
    const own = this.#locks.lock(resources, { leaseMs: duration, renew: false, maxHoldMs: Infinity });
    const { attempts } = await this.#execute(resources, all, () => take(own, all));
    return this.#lockOf(own, resources, attempts, expirationOf(own, duration, all));
  }

  async release(lock: Lock, settings?: Partial<Settings>): Promise<ExecutionResult> {
    checkLock(lock);
    const all = settingsOf(settings, this.settings);
    lock.expiration = 0;
    return this.#execute(lock.resources, all, async () => {
      const own = this.#owners.get(lock);
      return own ? own.release() : this.#byValue(lock).disown();
    });
  }

  /** Sets the lease, and returns the lock that replaces the existing one. */
  async extend(existing: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock> {
    checkLock(existing);
    checkDuration(duration);
    const all = settingsOf(settings, this.settings);
    if (existing.expiration < Date.now()) throw new ExecutionError('Cannot extend an already-expired lock.', []);
    let own: OwnLock | undefined;
    const { attempts } = await this.#execute(existing.resources, all, async () => {
      own = this.#owners.get(existing) ?? (await this.#adopt(existing));
      return own !== undefined && own.extend(duration);
    });
    existing.expiration = 0;
    return this.#lockOf(own!, existing.resources, attempts, expirationOf(own!, duration, all));
  }

  /** Runs a routine under a lock that is extended until the routine has ended. */
  async using<T>(resources: string[], duration: number, settings: Partial<Settings>, routine?: Routine<T>): Promise<T>;
  async using<T>(resources: string[], duration: number, routine: Routine<T>): Promise<T>;
  async using<T>(
    resources: string[],
    duration: number,
    settingsOrRoutine: Partial<Settings> | Routine<T> | undefined,
    optionalRoutine?: Routine<T>,
  ): Promise<T> {
    checkResources(resources);
    checkDuration(duration);
    const routine = optionalRoutine ?? settingsOrRoutine;
    if (typeof routine !== 'function') throw new TypeError('INVARIANT: routine is not a function.');
    const all = settingsOf(typeof settingsOrRoutine === 'function' ? {} : settingsOrRoutine, this.settings);
    const earliestMs = duration - all.automaticExtensionThreshold;
    if (earliestMs < LEAST_MARGIN_MS) {
      throw new RangeError(
        'A lock `duration` must be at least 100ms greater than the `automaticExtensionThreshold` setting.',
      );
    }

    const controller = new AbortController();
    const signal: RedlockAbortSignal = controller.signal;
    const lose = () => {
      signal.error ??= this.#failure(own.signal.reason, 1);
      controller.abort(signal.error);
      return signal.error;
    };
    const own = this.#locks.lock(resources, { leaseMs: duration, maxHoldMs: Infinity, onLost: lose });
    const { attempts } = await this.#execute(resources, all, () => take(own, all));
    const lock = this.#lockOf(own, resources, attempts, () => expirationOf(own, duration, all));
    const extendsEarly = earliestMs < duration / 3;
    const extension = extendsEarly ? setInterval(() => own.extend(duration).catch(ignore), earliestMs).unref() : undefined;
    let result: T;
    try {
      result = await routine(signal, { lock });
    } finally {
      clearInterval(extension);
      await own.endBlock();
    }
    if (own.lost) throw lose();
    return result;
  }

  /** Makes a call, and returns its vote. Throws an ExecutionError if the call had no success. */
  async #execute(resources: string[], settings: Settings, call: () => Promise<boolean>): Promise<ExecutionResult> {
    const start = Date.now();
    const count = resources.length;
    const locked = new ResourceLockedError(`The operation was applied to: 0 of the ${count} requested resources.`);
    try {
      if (await call()) return { attempts: [this.#vote()], start };
    } catch (error) {
      // A string is a lock of npm's redlock.
      const isLocked = error instanceof NotHeldError || isOfAnotherType(error);
      throw this.#failure(isLocked ? locked : error, attemptsOf(settings));
    }
    throw this.#failure(locked, attemptsOf(settings));
  }

  #failure(reason: unknown, attempts: number): ExecutionError {
    const error = this.#asError(reason);
    this.#tell(error);
    const text = error instanceof ResourceLockedError ? '.' : `: ${error.message}`;
    return new ExecutionError(NO_QUORUM + text, Array(attempts).fill(this.#vote(error)), { cause: error });
  }

  #asError(reason: unknown): Error {
    // ioredis's words, which programs look for.
    if (reason instanceof UnavailableError && isClosed(this.#client)) return new Error('Connection is closed.', { cause: reason });
    return reason instanceof Error ? reason : new Error(String(reason));
  }

  /** Returns the summary of an attempt, with the reason if it had no success. */
  #vote(reason?: Error): Promise<ExecutionStats> {
    const votesFor = new Set(reason ? [] : [this.#client]);
    const votesAgainst = new Map(reason ? [[this.#client, reason]] : []);
    return Promise.resolve({ membershipSize: 1, quorumSize: 1, votesFor, votesAgainst });
  }

  #tell(error: Error) {
    run(() => this.emit('error', error));
  }

  #lockOf(own: OwnLock, resources: string[], attempts: readonly Promise<ExecutionStats>[], expiration: number | (() => number)): Lock {
    const lock = new Lock(this, resources, own.token, attempts, expiration, own.fence);
    this.#owners.set(lock, own);
    return lock;
  }

  /** Takes over a lock that another process has made. Returns undefined if it has ended. */
  async #adopt(lock: Lock): Promise<OwnLock | undefined> {
    const own = this.#byValue(lock);
    return (await own.adopt()) ? own : undefined;
  }

  #byValue({ resources, value }: Lock): OwnLock {
    checkResources(resources);
    return this.#locks.lock(resources, { token: value, renew: false, maxHoldMs: Infinity });
  }
}

export default Redlock;

const attemptsOf = (settings: Settings) => (isEndless(settings) ? 1 : Math.min(settings.retryCount + 1, MOST_ATTEMPTS));

/** Returns the time at which a lock ends, less the drift, or 0 if it isn't held. */
function expirationOf(own: OwnLock, duration: number, { driftFactor }: Settings): number {
  const leftMs = own.leaseLeftMs;
  return leftMs === 0 ? 0 : Math.floor(Date.now() + leftMs) - Math.round(driftFactor * duration) - PRECISION_MS;
}

/** Acquires a lock within the time limit. Polls only while npm's redlock holds it, because that has no queue. */
async function take(own: OwnLock, settings: Settings): Promise<boolean> {
  const until = now() + limitMs(settings);
  let leftMs = limitMs(settings);
  do {
    try {
      return (await own.acquire({ waitMs: leftMs })) !== undefined;
    } catch (error) {
      if (!isOfAnotherType(error)) throw error;
    }
    const pauseMs = settings.retryDelay + (Math.random() * 2 - 1) * settings.retryJitter;
    await new Bell().wait(Math.min(pauseMs, leftMs));
    leftMs = until - now();
  } while (leftMs > 0);
  return false;
}
