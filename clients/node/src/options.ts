import type { Lock } from './lock.js';

export interface LockOptions {
  /** Lease, after which the lock ends unless it is renewed. Default: 30000. */
  leaseMs?: number | undefined;
  /** Time limit of `acquire`: 0 tries once. Default: Infinity. */
  waitMs?: number | undefined;
  /** Token, which names the owner and controls the lock. Default: 128 random bits in hex. */
  token?: string | undefined;
  /** True if other shared holders are admitted. Default: true with a limit, else false. */
  shared?: boolean | undefined;
  /** Most permits that shared holders may take together: a semaphore. */
  limit?: number | undefined;
  /** Permits that this holder takes of the limit. Default: 1. */
  permits?: number | undefined;
  /** True to tie the lock to its own connection. The server releases it when that closes. */
  session?: boolean | undefined;
  /** Time for which a place in the queue is kept without a request. Default: 10000. */
  keepMs?: number | undefined;
  /** True to renew the lease at a third of it. Default: true. */
  renew?: boolean | undefined;
  /** True if `acquire` adds a hold to a held lock, which takes as many releases. Default: false. */
  reentrant?: boolean | undefined;
  /** Longest time from the grant for which the library renews the lock. Default: 24 hours. */
  maxHoldMs?: number | undefined;
  /** Time from the grant for which the lock stays, even if it is released earlier. Default: 0. */
  atLeastMs?: number | undefined;
  /** Public note of at most 1024 bytes, which LOCK.INFO shows. */
  data?: string | Uint8Array | undefined;
  /** Number of replicas that must acknowledge each grant. */
  replicas?: number | undefined;
  /** Callback that runs once for each loss. */
  onLost?: ((lock: Lock) => void) | undefined;
}

export interface AcquireOptions {
  /** Time limit: 0 tries once, Infinity sets no limit. Default: the lock's own. */
  waitMs?: number | undefined;
  /** Signal that cancels the call: the promise is rejected with the signal's reason. */
  signal?: AbortSignal | undefined;
}

const LONGEST_MS = 2 ** 53 - 1;
const MOST_PERMITS = 2 ** 32 - 1;
const LONGEST_TOKEN = 256;
const LONGEST_DATA = 1024;
const MOST_REPLICAS = 1000;
const DAY_MS = 24 * 60 * 60 * 1000;

function number(name: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number') throw new TypeError(`${name}: expected a number, not ${typeof value}`);
  if (!(value >= least && value <= most)) throw new RangeError(`${name}: expected ${least} to ${most}, not ${value}`);
  return value;
}

function whole(name: string, value: unknown, most: number): number {
  if (!Number.isInteger(number(name, value, 1, most))) throw new RangeError(`${name}: expected a whole number, not ${value}`);
  return value as number;
}

/** Checks a time, and rounds it up to whole milliseconds. */
export const timeMs = (name: string, value: unknown, longest = LONGEST_MS): number =>
  Math.ceil(number(name, value, Number.MIN_VALUE, longest));
export const waitMs = (value: unknown): number => (value === Infinity ? Infinity : number('waitMs', value, 0, LONGEST_MS));

function flag(name: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw new TypeError(`${name}: expected a boolean, not ${typeof value}`);
  return value;
}

export function checkObject(name: string, value: unknown) {
  if (typeof value !== 'object' || value === null) throw new TypeError(`${name}: expected an object`);
}

function ofBytes(name: string, value: string | Uint8Array, least: number, most: number) {
  const length = Buffer.byteLength(value);
  if (length < least || length > most) throw new RangeError(`${name}: expected ${least} to ${most} bytes, not ${length}`);
}

/** Each option's check, which returns the value in use. */
const checks = {
  leaseMs: (value = 30_000) => timeMs('leaseMs', value),
  waitMs: (value = Infinity) => waitMs(value),
  token(value?: string) {
    if (value === undefined) return undefined;
    if (typeof value !== 'string') throw new TypeError(`token: expected a string, not ${typeof value}`);
    ofBytes('token', value, 1, LONGEST_TOKEN);
    if (value === '*') throw new RangeError("token: '*' is not a name");
    return value;
  },
  shared: (value = false) => flag('shared', value),
  limit: (value?: number) => (value === undefined ? undefined : whole('limit', value, MOST_PERMITS)),
  permits: (value?: number) => (value === undefined ? undefined : whole('permits', value, MOST_PERMITS)),
  session: (value = false) => flag('session', value),
  keepMs: (value = 10_000) => timeMs('keepMs', value),
  renew: (value = true) => flag('renew', value),
  reentrant: (value = false) => flag('reentrant', value),
  maxHoldMs: (value = DAY_MS) => (value === Infinity ? Infinity : timeMs('maxHoldMs', value)),
  atLeastMs: (value = 0) => (value === 0 ? 0 : timeMs('atLeastMs', value)),
  data(value?: string | Uint8Array) {
    if (value === undefined) return undefined;
    if (typeof value !== 'string' && !(value instanceof Uint8Array)) throw new TypeError('data: expected a string or bytes');
    ofBytes('data', value, 0, LONGEST_DATA);
    return Buffer.from(value);
  },
  replicas: (value?: number) => (value === undefined ? undefined : whole('replicas', value, MOST_REPLICAS)),
  onLost(value?: (lock: Lock) => void) {
    if (value !== undefined && typeof value !== 'function') throw new TypeError('onLost: expected a function');
    return value;
  },
};

/** Options after the checks, with defaults. The callback isn't among them: it may refer to its lock. */
export type Terms = { readonly [name in Exclude<keyof typeof checks, 'onLost'>]: ReturnType<(typeof checks)[name]> };

/** Terms without options. perf: most locks set few options, and unset ones need no check. */
const defaults = Object.fromEntries(Object.entries(checks).map(([name, check]) => [name, check()])) as unknown as Terms;

/** Checks options, and fills in the defaults. Throws a TypeError or RangeError that names the option. */
export function termsOf(options: LockOptions): Terms {
  checkObject('options', options);
  if (Object.keys(options).length === 0) return defaults;
  const terms: Record<string, unknown> = { ...defaults };
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(checks, name)) throw new TypeError(`${name}: no such option`);
    const checked = (checks as Record<string, (value: unknown) => unknown>)[name]!(value);
    if (name !== 'onLost') terms[name] = checked;
  }
  const { limit, permits } = terms as unknown as Terms;
  if (permits !== undefined && limit === undefined) throw new TypeError('permits: expected a limit with it');
  if (permits !== undefined && permits > limit!) throw new RangeError(`permits: expected 1 to ${limit}, not ${permits}`);
  return terms as unknown as Terms;
}

export function keysOf(keys: unknown, name = 'keys'): readonly string[] {
  const all: unknown[] = Array.isArray(keys) ? [...keys] : [keys];
  if (all.length === 0) throw new RangeError(`${name}: expected at least one`);
  if (!all.every((key) => typeof key === 'string')) throw new TypeError(`${name}: expected strings`);
  if (new Set(all).size < all.length) throw new RangeError(`${name}: expected each only once`);
  return all as string[];
}

export function checkAcquire(options: AcquireOptions) {
  checkObject('options', options);
  const { waitMs: limit, signal } = options;
  if (limit !== undefined) waitMs(limit);
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw new TypeError('signal: expected an AbortSignal');
}
