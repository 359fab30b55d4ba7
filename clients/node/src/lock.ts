import { randomBytes } from 'node:crypto';

import { type Connection, type Link, Turns, type Words } from './link.js';
import { Deadlock, LockLost, type LockOptions, NotAcquired, type WaitOptions } from './options.js';
import { Bell, ignore, never, now, unlessAborted, within } from './time.js';

type Keys = string | readonly string[];

const FIRST_PAUSE_MS = 50;
const LAST_PAUSE_MS = 1000;
/** For how long who gives up is kept until the server has confirmed it. It goes on behind him. */
const CONFIRM_MS = 250;
/** The server's errors that end by themselves: it starts, it follows another one, its cluster is re-formed. */
const PASSING = ['LOADING', 'READONLY', 'MASTERDOWN', 'CLUSTERDOWN', 'TRYAGAIN', 'MOVED'];

const option = (name: string, value?: number) => (value === undefined ? [] : [name, value]);
/** What an error of the server's begins with. Other errors are the client's own. */
const codeOf = (error: unknown) => (error instanceof Error ? /^[A-Z]{2,}(?= )/.exec(error.message)?.[0] : undefined);

/** Whether the same may be answered later. */
function passes(error: unknown): boolean {
  const code = codeOf(error);
  return code === undefined ? !(error instanceof TypeError) : PASSING.includes(code);
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
  constructor(link: Link, turns: Turns, keys: Keys, options: LockOptions) {
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
    const time = waitMs > 0 ? within(waitMs + 1) : never();
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

  #inTurn<T>(work: () => Promise<T>, end = never()): Promise<T> {
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
    const ask = async () => {
      // A client may leave what it sent unanswered when its connection broke.
      const granted = await unlessAborted(this.#request('QUEUE', place), within(this.#askMs));
      if (granted) return granted;
      let fault: unknown;
      const failed = (error: unknown) => {
        fault = error;
        bell.ring();
      };
      this.#turns.listen(this.#link, channel)?.then(bell.ring, failed);
      // Not for the subscription itself: the place has to be kept, whatever becomes of that.
      await bell.wait(this.#askMs);
      if (fault) throw fault;
      return undefined;
    };
    this.#turns.on(`turn ${message}`, bell.ring).on('missed', bell.ring);
    try {
      for (;;) {
        const granted = await this.#resend(ask, end, this.#keepMs);
        if (granted) return granted;
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

  /** How long a place is silent. A grant that nobody asks for ends with KEEP, or with the lease where that is shorter. */
  get #askMs(): number {
    return Math.min(this.#keepMs, this.#leaseMs) / 3;
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
    let sent = 0;
    const release = () => {
      sent += 1;
      return this.#send('RELEASE', ['HOLDS', grant.holds]);
    };
    const released = await this.#resend(release, within(grant.until - now())).finally(() => this.#closeUnlessHeld());
    if (Number(released) === this.keys.length) return true;
    // Where an answer was lost, that one may have told of the release. A session may have ended as it was.
    if (released !== undefined && sent > 1 && grant.holds === 0 && !this.#options.session) return true;
    if (grant.holds === 0 || this.#grant === grant) this.#lose();
    return false;
  }

  /** Sends the same again while only the connection fails, or is silent. Undefined when it is told to stop. */
  async #resend<T>(send: () => Promise<T>, stop: AbortSignal, attemptMs = this.#leaseMs / 3): Promise<T | undefined> {
    for (let pauseMs = FIRST_PAUSE_MS; !stop.aborted; pauseMs = Math.min(2 * pauseMs, LAST_PAUSE_MS)) {
      try {
        return await unlessAborted(send(), AbortSignal.any([stop, within(attemptMs)]));
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
  lock(keys: Keys, options: LockOptions = {}): Lock {
    return new Lock(this.#link, this.#turns, keys, options);
  }

  /** A lock that is acquired. Waits for ever unless `waitMs` is given, and throws NotAcquired when that is over. */
  async acquire(keys: Keys, options: LockOptions & WaitOptions = {}): Promise<Lock> {
    const lock = this.lock(keys, options);
    const fence = await lock.acquire({ waitMs: options.waitMs ?? Infinity, signal: options.signal });
    if (fence === undefined) throw new NotAcquired(`not free in time: ${lock.keys.join(', ')}`);
    return lock;
  }

  /** Works under a lock. Throws LockLost when the lock was lost before the work was done. */
  async using<T>(
    keys: Keys,
    options: LockOptions & WaitOptions,
    work: (signal: AbortSignal, lock: Lock) => Promise<T> | T,
  ): Promise<T> {
    const lock = await this.acquire(keys, options);
    let result: T;
    try {
      result = await work(lock.signal, lock);
    } catch (error) {
      await lock.release().catch(ignore);
      throw error;
    }
    await lock[Symbol.asyncDispose]();
    return result;
  }
}
