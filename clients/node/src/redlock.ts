/**
 * The interface of npm's `redlock` 5, with the module's commands. Waiters are served in their order
 * instead of polling every `retryDelay`. A key that npm's redlock holds counts as locked.
 */

import { EventEmitter } from 'node:events';
import { inspect } from 'node:util';
import type { Cluster, Redis } from 'ioredis';

import { goOn } from './commands.js';
import { Call } from './connection.js';
import { isOfAnotherType, LockLostError, NotHeldError, UnavailableError } from './errors.js';
import type { Grant } from './grant.js';
import type { Lock as Recipe, Locks } from './locks.js';
import type { NodeRedis } from './node-redis.js';
import { tell } from './observer.js';
import { keysOf, Options, timeMs, type Word } from './options.js';
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
  readonly attempts: readonly Promise<ExecutionStats>[];

  constructor(
    message: string,
    attempts: readonly Promise<ExecutionStats>[],
    options?: ErrorOptions,
  ) {
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
  retryCount: (value) =>
    value === -1 || value === Infinity || (Number.isInteger(value) && value >= 0),
  retryDelay: (value) => value >= 0 && value < Infinity,
  retryJitter: (value) => value >= 0 && value < Infinity,
  automaticExtensionThreshold: (value) => value >= 0 && value < Infinity,
};

function settingsOf(given: Partial<Settings> = {}, base: Settings): Settings {
  if (typeof given !== 'object' || given === null)
    throw new TypeError('settings: expected an object');
  const settings: { -readonly [name in keyof Settings]: number } = { ...base };
  for (const [name, isValid] of Object.entries(checks) as [
    keyof Settings,
    (value: number) => boolean,
  ][]) {
    const value: unknown = given[name];
    if (value === undefined) continue;
    if (typeof value !== 'number')
      throw new TypeError(`${name}: expected a number, not ${typeof value}`);
    if (!isValid(value)) throw new RangeError(`${name}: ${value} is out of range`);
    settings[name] = value;
  }
  return settings;
}

const isEndless = ({ retryCount }: Settings) => retryCount === -1 || retryCount === Infinity;

function limitMs(settings: Settings): number {
  if (isEndless(settings)) return Infinity;
  return Math.min(
    settings.retryCount * (settings.retryDelay + settings.retryJitter),
    Number.MAX_SAFE_INTEGER,
  );
}

function checkDuration(duration: unknown) {
  if (!Number.isInteger(duration))
    throw new RangeError('Duration must be an integer value in milliseconds.');
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

/**
 * Locks of each client. A program may make many Redlocks of one client, which share connections.
 */
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
  /** Commands that release the locks which a late command might acquire again. */
  readonly #lastWords = new WeakMap<Lock, Word[]>();
  /** Grants of the locks that a routine of `using` has. */
  readonly #grants = new WeakMap<Lock, Grant>();

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

  /**
   * Acquires all resources or none. Waits in the server's queue, until the retries would be over.
   */
  async acquire(
    resources: string[],
    duration: number,
    settings?: Partial<Settings>,
  ): Promise<Lock> {
    checkResources(resources);
    checkDuration(duration);
    const all = settingsOf(settings, this.settings);
    const recipe = this.#locks.lock(resources, {
      leaseMs: duration,
      marginMs: 0,
      renew: false,
      maxHoldMs: Infinity,
    });
    const { grant, attempts } = await this.#acquire(recipe, resources, all);
    const lock = new Lock(
      this,
      resources,
      grant.token,
      attempts,
      expiry(grant.left(), duration, all),
      grant.fence,
    );
    // The token of the lock releases and extends it.
    this.#lastWords.set(lock, grant.handOver());
    return lock;
  }

  async release(lock: Lock, settings?: Partial<Settings>): Promise<ExecutionResult> {
    checkLock(lock);
    const all = settingsOf(settings, this.settings);
    const leftMs = lock.expiration - Date.now();
    lock.expiration = 0;
    return this.#execute(
      lock.resources,
      all,
      () => this.#grants.get(lock)?.release() ?? this.#release(lock, leftMs),
    );
  }

  /** Sets the lease, and returns the lock that replaces the existing one. */
  async extend(existing: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock> {
    checkLock(existing);
    checkDuration(duration);
    const all = settingsOf(settings, this.settings);
    if (existing.expiration < Date.now())
      throw new ExecutionError('Cannot extend an already-expired lock.', []);
    const { resources, value, fence } = existing;
    const grant = this.#grants.get(existing);
    const words = this.#optionsOf(existing).endAfter(value, duration);
    const began = now();
    // The command of an extension that fails may arrive late, and set a shorter lease.
    existing.expiration = Math.min(existing.expiration, expiry(duration, duration, all));
    const { attempts } = await this.#execute(resources, all, async () =>
      grant ? grant.extend(duration) : this.#ask(existing, words, new Call(value)),
    );
    existing.expiration = 0;
    const ends = grant
      ? () => expiryOf(grant, duration, all)
      : expiry(began + duration - now(), duration, all);
    const lock = new Lock(this, resources, value, attempts, ends, fence);
    if (grant) this.#grants.set(lock, grant);
    const lastWords = this.#lastWords.get(existing);
    if (lastWords) this.#lastWords.set(lock, lastWords);
    return lock;
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
    checkResources(resources);
    checkDuration(duration);
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
    const recipe = this.#locks.lock(resources, {
      leaseMs: duration,
      maxHoldMs: Infinity,
      onLost: (grant) => lose(grant.signal.reason),
    });
    const { grant, attempts } = await this.#acquire(recipe, resources, all);
    const lock = new Lock(
      this,
      resources,
      grant.token,
      attempts,
      () => expiryOf(grant, duration, all),
      grant.fence,
    );
    this.#grants.set(lock, grant);
    const extendsEarly = earliestMs < duration / 3;
    const extension = extendsEarly
      ? setInterval(() => grant.extend(duration).catch(ignore), earliestMs).unref()
      : undefined;
    try {
      return await grant.using(() => routine(signal, { lock }));
    } catch (error) {
      throw error instanceof LockLostError ? lose(error) : error;
    } finally {
      clearInterval(extension);
    }
  }

  /**
   * Acquires within the time limit. Polls only while npm's redlock holds the lock, because that has
   * no queue.
   */
  async #acquire(recipe: Recipe, resources: string[], settings: Settings) {
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
        await new Bell().wait(Math.min(pauseMs, leftMs));
        leftMs = until - now();
      } while (leftMs > 0);
      return false;
    });
    return { grant: grant!, attempts };
  }

  /**
   * Releases a lock by its value. If no server replies, goes on in the background until its
   * expiration.
   */
  async #release(lock: Lock, leftMs: number): Promise<boolean> {
    const words = this.#lastWords.get(lock) ?? this.#optionsOf(lock).release(lock.value);
    const call = new Call(lock.value);
    try {
      const isHeld = await this.#ask(lock, words, call);
      // If a reply was lost, the command before may have released the lock.
      return isHeld || call.unanswered > 0;
    } catch (error) {
      if (error instanceof UnavailableError) {
        goOn(this.#ask(lock, words, new Call(lock.value, undefined, true), now() + leftMs));
      }
      throw error;
    }
  }

  /** Sends a command about a lock. Returns false if the lock has ended. */
  async #ask(lock: Lock, words: Word[], call: Call, until?: number): Promise<boolean> {
    const { commands } = this.#locks;
    const { name, keys } = this.#optionsOf(lock);
    const once = async (end: number) =>
      Number(await commands.ask(name, words, call, end)) === keys.length;
    return commands.retry(once, call, until ?? now() + commands.timeoutMs);
  }

  #optionsOf({ resources }: Lock): Options {
    checkResources(resources);
    return new Options(resources, this.#locks.commands.servers.link.prefix, {});
  }

  /** Makes a call, and returns its vote. Throws an ExecutionError if the call had no success. */
  async #execute(
    resources: string[],
    settings: Settings,
    call: () => Promise<boolean>,
  ): Promise<ExecutionResult> {
    const start = Date.now();
    const count = resources.length;
    const locked = new ResourceLockedError(
      `The operation was applied to: 0 of the ${count} requested resources.`,
    );
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
    return new ExecutionError(NO_QUORUM + text, Array(attempts).fill(this.#vote(error)), {
      cause: error,
    });
  }

  #asError(reason: unknown): Error {
    // ioredis's words, which programs look for.
    if (reason instanceof UnavailableError && isClosed(this.#client))
      return new Error('Connection is closed.', { cause: reason });
    return reason instanceof Error ? reason : new Error(String(reason));
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

const attemptsOf = (settings: Settings) =>
  isEndless(settings) ? 1 : Math.min(settings.retryCount + 1, MOST_ATTEMPTS);

/** Returns the time at which a lock ends, less the drift, or 0 if it isn't held. */
const expiry = (leftMs: number, duration: number, { driftFactor }: Settings): number =>
  leftMs <= 0
    ? 0
    : Math.floor(Date.now() + leftMs) - Math.round(driftFactor * duration) - PRECISION_MS;
const expiryOf = (grant: Grant, duration: number, settings: Settings): number =>
  expiry(grant.left(), duration, settings);
