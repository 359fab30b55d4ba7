/** The options of a lock, checked, and the commands that they make. */

export type Word = string | Buffer;
export type Keys = string | readonly string[];

export interface Settings {
  /** Lease, after which the lock ends unless it is renewed. Default: 30000. */
  leaseMs?: number | undefined;
  /** Time limit of `acquire` and `using`: 0 tries once. Default: Infinity. */
  waitMs?: number | undefined;
  /** True if other shared holders are admitted. Default: true with a limit, else false. */
  shared?: boolean | undefined;
  /** Most permits that shared holders may take together: a semaphore. */
  limit?: number | undefined;
  /** Permits that a grant takes of the limit. Default: 1. */
  permits?: number | undefined;
  /** True if a grant ends with its connection. Default: false. */
  session?: boolean | undefined;
  /**
   * Time for which the server keeps the place of a waiter that it doesn't hear of. Default: 10000.
   */
  keepMs?: number | undefined;
  /** True to renew the lease at a third of it. Default: true. */
  renew?: boolean | undefined;
  /**
   * Time before the end of the lease at which a grant counts as lost, so that the program can stop
   * before another client has the lock. Default: a tenth of the lease, at most 1000.
   */
  marginMs?: number | undefined;
  /** Time from the grant for which the lease is renewed. Default: 24 hours. */
  maxHoldMs?: number | undefined;
  /** Time from the grant for which the lock stays, even if it is released earlier. Default: 0. */
  atLeastMs?: number | undefined;
  /** Public note of at most 1024 bytes, which LOCK.INFO shows. */
  data?: string | Uint8Array | undefined;
  /** Number of replicas that must acknowledge each grant within the command timeout. */
  replicas?: number | undefined;
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
/** Longest time of LEAVE that the server takes. */
const LONGEST_LEAVE_MS = DAY_MS;
/** Longest margin by default. */
const MARGIN_MS = 1000;
/** Time for which the server keeps a place after the limit. */
const KEEP_AFTER_LIMIT_MS = 1000;

function number(name: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number')
    throw new TypeError(`${name}: expected a number, not ${typeof value}`);
  if (!(value >= least && value <= most))
    throw new RangeError(`${name}: expected ${least} to ${most}, not ${value}`);
  return value;
}

const whole = (most: number) => (name: string, value: unknown) => {
  if (Number.isInteger(number(name, value, 1, most))) return value as number;
  throw new RangeError(`${name}: expected a whole number, not ${value}`);
};

/** Checks a time, and rounds it up to whole milliseconds. */
export const timeMs = (name: string, value: unknown, least = Number.MIN_VALUE): number =>
  Math.ceil(number(name, value, least, LONGEST_MS));
const timeOrZeroMs = (name: string, value: unknown): number => timeMs(name, value, 0);
const limitMs = (name: string, value: unknown): number =>
  value === Infinity ? Infinity : timeOrZeroMs(name, value);

const typed =
  <T>(type: string) =>
  (name: string, value: unknown): T => {
    if (typeof value === type) return value as T;
    throw new TypeError(`${name}: expected a ${type}, not ${typeof value}`);
  };
export const callback = typed<Function>('function');
const flag = typed<boolean>('boolean');
const text = typed<string>('string');

export function checkObject(name: string, value: unknown) {
  if (typeof value !== 'object' || value === null)
    throw new TypeError(`${name}: expected an object`);
}

function checkLength(name: string, value: string | Uint8Array, least: number, most: number) {
  const length = Buffer.byteLength(value);
  if (length < least || length > most)
    throw new RangeError(`${name}: expected ${least} to ${most} bytes, not ${length}`);
}

export function checkToken(token: unknown) {
  checkLength('token', text('token', token), 1, LONGEST_TOKEN);
  if (token === '*') throw new RangeError("token: '*' is not a name");
}

function bytes(name: string, value: unknown): Buffer {
  const all = value instanceof Uint8Array ? value : text(name, value);
  checkLength(name, all, 0, LONGEST_DATA);
  return Buffer.from(all);
}

/** Each option's check, which returns the value in use. */
const checks = {
  leaseMs: timeMs,
  waitMs: limitMs,
  shared: flag,
  limit: whole(MOST_PERMITS),
  permits: whole(MOST_PERMITS),
  session: flag,
  keepMs: timeMs,
  renew: flag,
  marginMs: timeOrZeroMs,
  maxHoldMs: (name: string, value: unknown) =>
    value === Infinity ? Infinity : timeMs(name, value),
  atLeastMs: timeOrZeroMs,
  data: bytes,
  replicas: whole(MOST_REPLICAS),
};

const defaults = {
  leaseMs: 30_000,
  waitMs: Infinity,
  shared: false,
  session: false,
  keepMs: 10_000,
  renew: true,
  maxHoldMs: DAY_MS,
  atLeastMs: 0,
};

/** Options after the checks. Those without a default may be absent. */
type Checked = { readonly [name in keyof typeof defaults]: ReturnType<(typeof checks)[name]> } & {
  readonly [name in keyof typeof checks]?: ReturnType<(typeof checks)[name]>;
};

function checkedOf(given: Settings): Checked {
  const all: Record<string, unknown> = { ...defaults };
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(checks, name)) throw new TypeError(`${name}: no such option`);
    if (value !== undefined) all[name] = checks[name as keyof typeof checks](name, value);
  }
  const checked = all as unknown as Checked;
  const { limit, permits, marginMs = 0, leaseMs } = checked;
  if (permits !== undefined && limit === undefined)
    throw new TypeError('permits: expected a limit with it');
  if (permits !== undefined && permits > limit!)
    throw new RangeError(`permits: expected 1 to ${limit}, not ${permits}`);
  if (marginMs >= leaseMs)
    throw new RangeError(`marginMs: expected less than leaseMs, not ${marginMs}`);
  return checked;
}

export function keysOf(keys: unknown, name = 'keys'): readonly string[] {
  const all: unknown[] = Array.isArray(keys) ? [...keys] : [keys];
  if (all.length === 0) throw new RangeError(`${name}: expected at least one`);
  if (!all.every((key) => typeof key === 'string'))
    throw new TypeError(`${name}: expected strings`);
  if (new Set(all).size < all.length) throw new RangeError(`${name}: expected each only once`);
  return all as string[];
}

/** Checks the options of an acquire, and returns its limit. */
export function limitOf(options: AcquireOptions, lock: Options): number {
  checkObject('options', options);
  const { waitMs, signal } = options;
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new TypeError('signal: expected an AbortSignal');
  return waitMs === undefined ? lock.waitMs : limitMs('waitMs', waitMs);
}

/** Returns a time as a word: at least one millisecond. */
const word = (ms: number) => String(Math.max(1, Math.ceil(ms)));

export interface Options extends Checked {}

/** The keys and the checked options of a lock. */
export class Options {
  readonly keys: readonly string[];
  /** The keys with the prefix of the client. */
  readonly names: readonly string[];
  /** Lease that an acquire asks for. */
  readonly firstLeaseMs: number;
  readonly margin: number;
  readonly #asked: readonly Word[];

  constructor(keys: unknown, prefix: string, given: Settings) {
    Object.assign(this, checkedOf(given));
    this.keys = keysOf(keys);
    this.names = prefix === '' ? this.keys : this.keys.map((key) => prefix + key);
    this.margin = this.marginMs ?? Math.min(this.leaseMs / 10, MARGIN_MS);
    this.firstLeaseMs = Math.min(this.leaseMs, this.maxHoldMs + this.margin);
    const { shared, limit, permits = 1, data } = this;
    this.#asked = [
      'PX',
      word(this.firstLeaseMs),
      ...(shared || limit !== undefined ? ['SHARED'] : []),
      ...(limit === undefined ? [] : ['LIMIT', String(limit), 'PERMITS', String(permits)]),
      ...(data === undefined ? [] : ['DATA', data]),
    ];
  }

  get name(): string {
    return this.names[0]!;
  }

  /** The longest time for which the server keeps a token's place or grant unasked. */
  get longestTraceMs(): number {
    return Math.max(this.firstLeaseMs, this.keepMs);
  }

  acquire(token: string, withinMs: number): Word[] {
    return this.#words('ACQUIRE', token, ...this.#asked, ...this.#replicated(withinMs));
  }

  /** Returns the WAIT of a part of the time that is left. The last one leaves no place. */
  wait(token: string, blockMs: number, leftMs: number, withinMs: number): Word[] {
    const kept = blockMs >= leftMs ? [] : this.#kept(leftMs);
    return this.#words(
      'WAIT',
      token,
      ...this.#asked,
      'BLOCK',
      word(blockMs),
      ...kept,
      ...this.#replicated(withinMs),
    );
  }

  queue(token: string, leftMs: number, channel: string, message: string): Word[] {
    return this.#words(
      'QUEUE',
      token,
      ...this.#asked,
      ...this.#kept(leftMs),
      'NOTIFY',
      channel,
      message,
    );
  }

  extend(token: string, leaseMs: number, ties: boolean): Word[] {
    const tied = ties ? ['SESSION'] : [];
    return this.#words('EXTEND', token, 'PX', word(leaseMs), 'GT', ...tied);
  }

  release(token: string): Word[] {
    return this.#words('RELEASE', token);
  }

  /** Returns the command that lets the lock end after a time, without its connection. */
  endAfter(token: string, ms: number): Word[] {
    const untied = this.session ? ['NOSESSION'] : [];
    return this.#words('EXTEND', token, 'PX', word(ms), ...untied);
  }

  leave(token: string, ms: number): Word[] {
    return this.#words('RELEASE', token, 'LEAVE', word(Math.min(ms, LONGEST_LEAVE_MS)));
  }

  #words(verb: string, token: string, ...rest: Word[]): Word[] {
    const { names } = this;
    if (names.length === 1) return [`LOCK.${verb}`, names[0]!, token, ...rest];
    return [`LOCK.M${verb}`, String(names.length), ...names, token, ...rest];
  }

  #kept(leftMs: number): Word[] {
    return ['KEEP', word(Math.min(this.keepMs, Math.max(leftMs, 0) + KEEP_AFTER_LIMIT_MS))];
  }

  #replicated(withinMs: number): Word[] {
    if (this.replicas === undefined) return [];
    return ['REPLICAS', String(this.replicas), 'WITHIN', String(Math.max(1, Math.floor(withinMs)))];
  }
}
