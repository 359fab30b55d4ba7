import { randomBytes } from 'node:crypto';
import { EventEmitter } from 'node:events';
import calculateSlot from 'cluster-key-slot';

/** What a lock needs of a client. Each supported client has a file that provides it. */
export interface Link {
  /** False once the client was closed for good. */
  readonly open: boolean;
  /** What the client puts before every key. */
  readonly prefix: string;
  readonly cluster: boolean;
  /** Sends a command, in a cluster to the node of the key. */
  send(key: string, words: string[]): Promise<unknown>;
  subscribe(channel: string, turns: Turns): Promise<unknown>;
  /** A connection of its own with the same settings. `connected` is called each time that it is made. */
  own(connected: () => void): Connection;
}

type Connection = Pick<Link, 'send'> & { close(): void };
type Words = ReadonlyArray<string | number>;

export interface LockOptions {
  /** How long the lock stays without being renewed. Default: 30000. */
  leaseMs?: number;
  /** The owner's name and his key to the lock. Default: 128 random bits in hex. */
  token?: string;
  /** Shared holders admit each other. */
  shared?: boolean;
  /** A semaphore: at most so many shared holders. */
  limit?: number;
  /** As how many of the limit this one counts. Default: 1. */
  permits?: number;
  /** Ties the lock to a connection of its own: the server frees it when that is closed. */
  session?: boolean;
  /** How long a place in the queue stays without a word from here. Default: 10000. */
  keepMs?: number;
  /** Whether to renew the lease at a third of it. Default: true. */
  renew?: boolean;
  /** Called once for each loss. */
  onLost?: (lock: Lock) => void;
}

export interface WaitOptions {
  /** How long to wait: 0 tries once, Infinity waits for ever. */
  waitMs?: number;
  /** Gives up waiting: the promise is rejected with its reason. */
  signal?: AbortSignal;
}

/** Others had the lock for all the time that there was. */
export class NotAcquired extends Error {
  override name = 'NotAcquired';
}

/** The lock ended before its release: the lease was over, or somebody deleted it. */
export class LockLost extends Error {
  override name = 'LockLost';
}

/** Waiting would never end: another holder waits for this one to leave. */
export class Deadlock extends Error {
  override name = 'Deadlock';
}

const FIRST_PAUSE_MS = 50;
const LAST_PAUSE_MS = 1000;
/** For how long who gives up is kept until the server has confirmed it. It goes on behind him. */
const CONFIRM_MS = 250;
/** Timers of Node.js can't be longer. */
const LONGEST_MS = 2 ** 31 - 1;
/** The server's errors that end by themselves: it starts, it follows another one, its cluster is re-formed. */
const PASSING = ['LOADING', 'READONLY', 'MASTERDOWN', 'CLUSTERDOWN', 'TRYAGAIN', 'MOVED'];

const now = () => performance.now();
export const ignore = () => {};
const NEVER = new AbortController().signal;
const option = (name: string, value?: number) => (value === undefined ? [] : [name, value]);
/** For each slot of a cluster a word that is in it. */
const tags: string[] = [];
let lastTag = 0;
const timerMs = (ms: number) => Math.min(Math.max(Math.ceil(ms), 0), LONGEST_MS);

/** What an error of the server's begins with. Other errors are the client's own. */
const codeOf = (error: unknown) => (error instanceof Error ? /^[A-Z]{2,}(?= )/.exec(error.message)?.[0] : undefined);

/** Whether the same may be answered later. */
function passes(error: unknown): boolean {
  const code = codeOf(error);
  return code === undefined ? !(error instanceof TypeError) : PASSING.includes(code);
}

/** A signal that is aborted after a time. */
const within = (ms: number) => (ms > LONGEST_MS ? NEVER : AbortSignal.timeout(timerMs(ms)));

function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

/** A pause that ends early when it is rung. No timer here keeps a process alive: the client's connection does. */
class Bell {
  #rung = false;
  #wake = ignore;
  readonly ring = () => {
    this.#rung = true;
    this.#wake();
  };

  async wait(ms: number) {
    if (!this.#rung) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, timerMs(ms)).unref();
        this.#wake = () => resolve(clearTimeout(timer));
      });
    }
    this.#rung = false;
  }
}

/** Of one Locks: the messages that tell of turns, and 'missed' when some may have been lost. */
export class Turns extends EventEmitter {
  readonly #id = randomBytes(8).toString('hex');
  readonly #channels = new Set<string>();

  /** In a cluster the channel is in the slot of the key: it has a tag of that slot. */
  channel({ cluster, prefix }: Link, key: string): string {
    if (!cluster) return `redis-lock:${this.#id}`;
    const slot = calculateSlot(prefix + key);
    while (tags[slot] === undefined) tags[calculateSlot(String(++lastTag))] ??= String(lastTag);
    return `redis-lock:${this.#id}:{${tags[slot]}}`;
  }

  /** Whether it only listens there now, so that a message before it was not heard. */
  async listen(link: Link, channel: string): Promise<boolean> {
    if (this.#channels.has(channel)) return false;
    await link.subscribe(channel, this);
    this.#channels.add(channel);
    return true;
  }

  readonly heard = (message: string) => {
    this.emit(`turn ${message}`);
  };

  /** The connection was replaced: all is to be subscribed again. */
  missed() {
    this.#channels.clear();
    this.emit('missed');
  }
}

interface Grant {
  fence: number;
  holds: number;
  leaseMs: number;
  /** When the lease is over, counted from before the command was sent. */
  until: number;
}

/** A lock on one or several keys. It counts: acquired twice, it is free after two releases. */
export class Lock {
  readonly keys: readonly string[];
  readonly token: string;
  readonly #link: Link;
  readonly #turns: Turns;
  readonly #options: LockOptions;
  readonly #keepMs: number;
  #grant?: Grant;
  #lost = false;
  #loss = new AbortController();
  /** One call after the other: what a count of holds means depends on those before. */
  #turn: Promise<unknown> = Promise.resolve();
  /** The end of a wait that was given up. The next one with this token must not be hit by it. */
  #leaving: Promise<unknown> = Promise.resolve();
  /** Rung when a renewal is due at once. */
  readonly #renewal = new Bell();
  #own?: Connection;

  /** @internal */
  constructor(link: Link, turns: Turns, keys: string | readonly string[], options: LockOptions) {
    this.#link = link;
    this.#turns = turns;
    this.#options = options;
    this.#keepMs = options.keepMs ?? 10_000;
    this.keys = typeof keys === 'string' ? [keys] : [...keys];
    this.token = options.token ?? randomBytes(16).toString('hex');
  }

  /** While it is held: a number greater than that of every grant before. */
  get fence(): number | undefined {
    return this.#grant?.fence;
  }

  get lost(): boolean {
    return this.#lost || (this.#grant !== undefined && now() >= this.#grant.until);
  }

  /** Aborted with a LockLost upon the loss. */
  get signal(): AbortSignal {
    return this.#loss.signal;
  }

  /** The fence, or undefined when the lock was not to be had. Without `waitMs` it tries once. */
  async acquire({ waitMs = 0, signal }: WaitOptions = {}): Promise<number | undefined> {
    const time = waitMs > 0 ? within(waitMs + 1) : NEVER;
    const end = signal ? AbortSignal.any([signal, time]) : time;
    try {
      return await this.#inTurn(() => this.#acquire(waitMs > 0, end), end);
    } catch (error) {
      if (time.aborted && error === time.reason) return undefined;
      throw error;
    }
  }

  /** Gives back one hold. False when the lock was lost, or not held. */
  async release(): Promise<boolean> {
    return (this.#grant !== undefined || this.#lost) && this.#inTurn(() => this.#release());
  }

  /** Has the lease end `leaseMs` from now, and renewed to that length. False when the lock was lost. */
  async extend(leaseMs: number): Promise<boolean> {
    const grant = this.#held();
    if (!grant) return false;
    grant.leaseMs = leaseMs;
    const extended = await this.#extend(grant);
    this.#renewal.ring();
    return extended === true;
  }

  /** What the server says is left of the lease, in ms. 0: not held. */
  async left(): Promise<number> {
    const left = this.keys.map((key) => this.#send('CHECK', [], [key]));
    return Math.min(...(await Promise.all(left)).map(Number));
  }

  /** Releases what is held. Throws LockLost when it was lost. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
    if (this.lost) throw this.#lossError();
  }

  #inTurn<T>(work: () => Promise<T>, end = NEVER): Promise<T> {
    const before = this.#turn;
    const mine = unlessAborted(before, end).then(work);
    this.#turn = Promise.allSettled([before, mine]);
    return mine;
  }

  async #acquire(waits: boolean, end: AbortSignal): Promise<number | undefined> {
    await unlessAborted(this.#leaving, end);
    const before = this.#held();
    if (!before) this.#lost = false;
    try {
      const once = () => unlessAborted(this.#request('ACQUIRE', []), end);
      const granted = await (before ? this.#again(before, end) : waits ? this.#wait(end) : once());
      if (granted) this.#hold(granted);
      else this.#closeUnlessHeld();
      return granted?.fence;
    } catch (error) {
      const code = codeOf(error);
      // What was refused has left nothing. After anything else it may be waiting, or be granted by now.
      if (code === undefined || end.aborted) await this.#leave();
      this.#closeUnlessHeld();
      throw code === 'DEADLOCK' ? new Deadlock((error as Error).message, { cause: error }) : error;
    }
  }

  /** One more hold of what is held already. There is nothing to wait for. */
  async #again(grant: Grant, end: AbortSignal): Promise<Grant> {
    const granted = await unlessAborted(this.#resend(() => this.#request('ACQUIRE', []), this.signal), end);
    if (granted?.fence === grant.fence && this.#grant === grant) return granted;
    if (this.#grant === grant) this.#lose();
    throw this.#lossError();
  }

  /** A place in the queue, asked for with the same words until it is granted. */
  async #wait(end: AbortSignal): Promise<Grant> {
    const bell = new Bell();
    const channel = this.#turns.channel(this.#link, this.keys[0]!);
    // Everybody may read the message, so it is not the token.
    const message = randomBytes(8).toString('hex');
    const place = ['KEEP', this.#keepMs, 'NOTIFY', channel, message];
    const ask = async () => (await this.#request('QUEUE', place)) ?? this.#turns.listen(this.#link, channel);
    this.#turns.on(`turn ${message}`, bell.ring).on('missed', bell.ring);
    try {
      for (;;) {
        const answer = await this.#resend(ask, end);
        if (typeof answer === 'object') return answer;
        if (answer === false) await unlessAborted(bell.wait(this.#keepMs / 3), end);
        end.throwIfAborted();
      }
    } finally {
      this.#turns.off(`turn ${message}`, bell.ring).off('missed', bell.ring);
    }
  }

  async #request(verb: string, place: Words): Promise<Grant | undefined> {
    const { shared, limit, permits, session } = this.#options;
    if (session) this.#own ??= this.#link.own(this.#renewal.ring);
    const leaseMs = this.#leaseMs;
    const until = now() + leaseMs;
    const holds = (this.#grant?.holds ?? 0) + 1;
    const mode = [...(shared || limit ? ['SHARED'] : []), ...option('LIMIT', limit), ...option('PERMITS', permits)];
    const answer = await this.#send(verb, ['PX', leaseMs, 'HOLDS', holds, ...mode, ...place]);
    if (!Array.isArray(answer) || (this.#own && !(await this.#prolong(leaseMs)))) return undefined;
    return { fence: Number(answer[1]), holds, leaseMs, until };
  }

  /** The length that was set last. */
  get #leaseMs(): number {
    return this.#grant?.leaseMs ?? this.#options.leaseMs ?? 30_000;
  }

  /** Several keys have commands of their own, with an M in front. */
  #send(verb: string, options: Words, keys = this.keys, connection: Pick<Link, 'send'> = this.#link): Promise<unknown> {
    const sent = keys.map((key) => this.#link.prefix + key);
    const command = sent.length === 1 ? [`LOCK.${verb}`] : [`LOCK.M${verb}`, sent.length];
    return connection.send(sent[0]!, [...command, ...sent, this.token, ...options].map(String));
  }

  async #prolong(leaseMs: number): Promise<boolean> {
    const options = ['PX', leaseMs, ...(this.#own ? ['SESSION'] : [])];
    return Number(await this.#send('EXTEND', options, this.keys, this.#own)) > 0;
  }

  #hold(granted: Grant) {
    if (this.#grant) return void Object.assign(this.#grant, granted);
    this.#grant = granted;
    if (this.signal.aborted) this.#loss = new AbortController();
    void this.#keep(granted);
  }

  /** The grant, unless its lease is over by this clock. Then it is lost, whatever the server may say later. */
  #held(): Grant | undefined {
    if (this.#grant && now() >= this.#grant.until) this.#lose();
    return this.#grant;
  }

  /** Renews the grant, and notices its end. */
  async #keep(grant: Grant) {
    const renews = this.#options.renew !== false || this.#own !== undefined;
    while (this.#held() === grant) {
      const leftMs = grant.until - now();
      await this.#renewal.wait(renews ? Math.min(grant.leaseMs / 3, leftMs) : leftMs);
      // What the server refuses now is tried again at the next third. If it goes on, the lease ends.
      if (renews && this.#grant === grant && now() < grant.until) await this.#extend(grant).catch(ignore);
      // After a standstill of the process, what has arrived is read before the clock decides.
      await new Promise(setImmediate);
    }
  }

  #extend(grant: Grant): Promise<boolean | undefined> {
    return this.#resend(async () => {
      const until = now() + grant.leaseMs;
      const extended = this.#grant === grant && (await this.#prolong(grant.leaseMs));
      if (this.#grant !== grant) return false;
      if (extended) grant.until = until;
      else this.#lose();
      return extended;
    }, within(grant.until - now()));
  }

  async #release(): Promise<boolean> {
    const grant = this.#held();
    if (!grant) {
      // Of several keys some may still be held.
      if (this.#lost) await this.#leave();
      return false;
    }
    grant.holds -= 1;
    if (grant.holds === 0) this.#grant = undefined;
    this.#renewal.ring();
    const release = () => this.#send('RELEASE', ['HOLDS', grant.holds]);
    const released = await this.#resend(release, within(grant.until - now())).finally(() => this.#closeUnlessHeld());
    if (Number(released) === this.keys.length) return true;
    if (grant.holds === 0 || this.#grant === grant) this.#lose();
    return false;
  }

  /** Sends the same again while it is only the connection that fails. Undefined when it is told to stop. */
  async #resend<T>(send: () => Promise<T>, stop: AbortSignal): Promise<T | undefined> {
    for (let pauseMs = FIRST_PAUSE_MS; !stop.aborted; pauseMs = Math.min(2 * pauseMs, LAST_PAUSE_MS)) {
      try {
        return await unlessAborted(send(), stop);
      } catch (error) {
        if (!stop.aborted && !(this.#link.open && passes(error))) throw error;
        await unlessAborted(new Bell().wait(pauseMs), stop).catch(ignore);
      }
    }
    return undefined;
  }

  #lose() {
    this.#grant = undefined;
    this.#closeUnlessHeld();
    this.#lost = true;
    this.#loss.abort(this.#lossError());
    // What it throws is not to look like a renewal that failed.
    queueMicrotask(() => this.#options.onLost?.(this));
  }

  #lossError(): LockLost {
    return new LockLost(`lost while it was held: ${this.keys.join(', ')}`);
  }

  #closeUnlessHeld() {
    if (this.#grant) return;
    this.#own?.close();
    this.#own = undefined;
  }

  /** Gives up the wait, or what was granted before that: in this order nothing is left. */
  async #leave() {
    const holds = this.#grant?.holds ?? 0;
    const leave = async () => {
      const cancelled = await this.#send('CANCEL', [], this.keys.slice(0, 1));
      if (!Number(cancelled)) await this.#send('RELEASE', ['HOLDS', holds]);
    };
    // By then it has ended anyway.
    const over = within(Math.max(this.#keepMs, this.#leaseMs));
    this.#leaving = this.#resend(leave, over).catch(ignore);
    await Promise.race([this.#leaving, new Bell().wait(CONFIRM_MS)]);
  }
}

/** The locks of one client. */
export class Locks {
  readonly #link: Link;
  readonly #turns = new Turns().setMaxListeners(0);

  /** @internal */
  constructor(link: Link) {
    this.#link = link;
  }

  /** A lock that is not acquired yet. Several keys are held all at once or not at all. */
  lock(keys: string | readonly string[], options: LockOptions = {}): Lock {
    return new Lock(this.#link, this.#turns, keys, options);
  }

  /** A lock that is acquired. Waits for ever unless `waitMs` is given, and throws NotAcquired when that is over. */
  async acquire(keys: string | readonly string[], options: LockOptions & WaitOptions = {}): Promise<Lock> {
    const lock = this.lock(keys, options);
    const fence = await lock.acquire({ waitMs: options.waitMs ?? Infinity, signal: options.signal });
    if (fence === undefined) throw new NotAcquired(`not free in time: ${lock.keys.join(', ')}`);
    return lock;
  }

  /** Works under a lock. Throws LockLost when the lock was lost before the work was done. */
  async using<T>(
    keys: string | readonly string[],
    options: LockOptions & WaitOptions,
    work: (signal: AbortSignal, lock: Lock) => Promise<T>,
  ): Promise<T> {
    const lock = await this.acquire(keys, options);
    const result = await work(lock.signal, lock).catch(async (error) => {
      await lock.release().catch(ignore);
      throw error;
    });
    await lock[Symbol.asyncDispose]();
    return result;
  }
}
