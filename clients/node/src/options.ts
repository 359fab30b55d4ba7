/** The options of a lock, checked, and the commands that they make. */

export type Word = string | Buffer;
export type Keys = string | readonly string[];

export interface LockOptions<Grant = never> {
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
  /** Callback that runs once for each loss. */
  onLost?: ((grant: Grant) => void) | undefined;
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

const wrong = (name: string, expected: string, value: unknown) =>
  new RangeError(`${name}: expected ${expected}, not ${value}`);

const typed =
  <T>(type: string) =>
  (name: string, value: unknown): T => {
    if (typeof value === type) return value as T;
    throw new TypeError(`${name}: expected a ${type}, not ${typeof value}`);
  };
const number = typed<number>('number');
export const callback = typed<Function>('function');
const flag = typed<boolean>('boolean');
const text = typed<string>('string');

/** Checks a time, and rounds it up to whole milliseconds. */
export function timeMs(name: string, value: unknown, least = Number.MIN_VALUE): number {
  const ms = number(name, value);
  if (ms >= least && ms <= LONGEST_MS) return Math.ceil(ms);
  throw wrong(name, `${least} to ${LONGEST_MS}`, ms);
}
const timeOrZeroMs = (name: string, value: unknown): number => timeMs(name, value, 0);
const orEndless = (check: typeof timeOrZeroMs) => (name: string, value: unknown) =>
  value === Infinity ? Infinity : check(name, value);
const limitMs = orEndless(timeOrZeroMs);

const count = (most: number) => (name: string, value: unknown) => {
  const whole = number(name, value);
  if (Number.isInteger(whole) && whole >= 1 && whole <= most) return whole;
  throw wrong(name, `a whole number up to ${most}`, whole);
};

export function checkObject(name: string, value: unknown) {
  if (typeof value !== 'object' || value === null)
    throw new TypeError(`${name}: expected an object`);
}

function note(name: string, value: unknown): Buffer {
  const bytes = Buffer.from(value instanceof Uint8Array ? value : text(name, value));
  if (bytes.length <= LONGEST_DATA) return bytes;
  throw wrong(name, `at most ${LONGEST_DATA} bytes`, bytes.length);
}

export function checkToken(token: unknown) {
  const { length } = Buffer.from(text('token', token));
  if (length === 0 || length > LONGEST_TOKEN || token === '*')
    throw wrong('token', `1 to ${LONGEST_TOKEN} bytes, and no '*'`, `${length} bytes`);
}

/** Each option's check, which returns the value in use, and its default. */
const table = {
  leaseMs: [timeMs, 30_000],
  waitMs: [limitMs, Infinity],
  shared: [flag, false],
  limit: [count(MOST_PERMITS), undefined],
  permits: [count(MOST_PERMITS), undefined],
  session: [flag, false],
  keepMs: [timeMs, 10_000],
  renew: [flag, true],
  marginMs: [timeOrZeroMs, undefined],
  maxHoldMs: [orEndless(timeMs), DAY_MS],
  atLeastMs: [timeOrZeroMs, 0],
  data: [note, undefined],
  replicas: [count(MOST_REPLICAS), undefined],
  onLost: [callback, undefined],
} as const;

type Name = keyof typeof table;
/** Options after the checks. */
type Checked = {
  readonly [name in Name]: ReturnType<(typeof table)[name][0]> | (typeof table)[name][1];
};

function checkedOf(given: LockOptions): Checked {
  const other = Object.keys(given).find((name) => !Object.hasOwn(table, name));
  if (other !== undefined) throw new TypeError(`${other}: no such option`);
  const entries = (Object.keys(table) as Name[]).map((name) => {
    const [check, absent] = table[name];
    return [name, given[name] === undefined ? absent : check(name, given[name])];
  });
  const checked = Object.fromEntries(entries) as Checked;
  const { limit, permits = 1, marginMs = 0, leaseMs } = checked;
  if (checked.permits !== undefined && limit === undefined)
    throw new TypeError('permits: expected a limit with it');
  if (permits > (limit ?? 1)) throw wrong('permits', `1 to ${limit}`, permits);
  if (marginMs >= leaseMs) throw wrong('marginMs', 'less than leaseMs', marginMs);
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
  const { waitMs = lock.waitMs, signal } = options;
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new TypeError('signal: expected an AbortSignal');
  return limitMs('waitMs', waitMs);
}

/** Returns a time as a word: at least one millisecond. */
const word = (ms: number) => String(Math.max(1, Math.ceil(ms)));

export interface Options extends Checked {}

/** The keys and the checked options of a lock. */
export class Options {
  readonly keys: readonly string[];
  /** The keys with the prefix of the client. */
  readonly names: readonly string[];
  /** First of the names, by which the server is found. */
  readonly name: string;
  /** Longest time for which a grant is held. A lease that is never renewed has no limit. */
  readonly longestHoldMs: number;
  /** Lease that an acquire asks for. */
  readonly firstLeaseMs: number;
  readonly margin: number;
  /** The longest time for which the server keeps a token's place or grant unasked. */
  readonly longestTraceMs: number;
  readonly #asked: readonly Word[];

  constructor(keys: unknown, prefix: string, given: LockOptions) {
    checkObject('options', given);
    Object.assign(this, checkedOf(given));
    this.keys = keysOf(keys);
    this.names = this.keys.map((key) => prefix + key);
    this.name = this.names[0]!;
    this.margin = this.marginMs ?? Math.min(this.leaseMs / 10, MARGIN_MS);
    this.longestHoldMs = this.renew || this.session ? this.maxHoldMs : Infinity;
    this.firstLeaseMs = Math.min(this.leaseMs, this.longestHoldMs + this.margin);
    this.longestTraceMs = Math.max(this.firstLeaseMs, this.keepMs);
    const { shared, limit, permits = 1, data } = this;
    this.#asked = [
      'PX',
      word(this.firstLeaseMs),
      ...(shared || limit !== undefined ? ['SHARED'] : []),
      ...(limit === undefined ? [] : ['LIMIT', String(limit), 'PERMITS', String(permits)]),
      ...(data === undefined ? [] : ['DATA', data]),
    ];
  }

  acquire(token: string): Word[] {
    return this.#words('ACQUIRE', token, ...this.#asked);
  }

  /** Returns the ACQUIRE of a token that has the grant, on a connection of its own. */
  confirm(token: string, withinMs: number): Word[] {
    const { session, replicas } = this;
    const tied = session ? ['SESSION'] : [];
    const copied = replicas ? ['REPLICAS', String(replicas), 'WITHIN', word(withinMs)] : [];
    return [...this.acquire(token), ...tied, ...copied];
  }

  queue(token: string, leftMs: number, channel: string, message: string): Word[] {
    const keepMs = Math.min(this.keepMs, Math.max(leftMs, 0) + KEEP_AFTER_LIMIT_MS);
    const place = ['KEEP', word(keepMs), 'NOTIFY', channel, message];
    return this.#words('QUEUE', token, ...this.#asked, ...place);
  }

  extend(token: string, leaseMs: number): Word[] {
    return this.#words('EXTEND', token, 'PX', word(leaseMs), 'GT');
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
}
