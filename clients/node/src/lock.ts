import { randomBytes } from 'node:crypto';

import { type Connection, type Link, Turns, type Words } from './link.js';
import { Deadlock, LockLost, NotAcquired, type WaitOptions } from './options.js';
import { Bell, ignore, never, now, unlessAborted, within } from './time.js';

type Keys = string | readonly string[];

const FIRST_PAUSE_MS = 50;
const LAST_PAUSE_MS = 1000;
/** Longest wait for the server to confirm a cancelled wait. The cleanup continues after it. */
const CONFIRM_MS = 250;
/** Codes of temporary server errors: it is loading, it is a replica, or its cluster changes. */
const PASSING = ['LOADING', 'READONLY', 'MASTERDOWN', 'CLUSTERDOWN', 'TRYAGAIN', 'MOVED'];

const option = (name: string, value?: number) => (value === undefined ? [] : [name, value]);
/** Returns the code of a server's error, or undefined for an error of the client. */
const codeOf = (error: unknown) => (error instanceof Error ? /^[A-Z]{2,}(?= )/.exec(error.message)?.[0] : undefined);

/** Returns true if the same command may succeed later. */
function passes(error: unknown): boolean {
  const code = codeOf(error);
  return code === undefined ? !(error instanceof TypeError) : PASSING.includes(code);
}

export interface LockOptions {
  /** Lease, after which the lock ends unless it is renewed. Default: 30000. */
  leaseMs?: number;
  /** Token, which names the owner and controls the lock. Default: 128 random bits in hex. */
  token?: string;
  /** True if other shared holders are admitted. */
  shared?: boolean;
  /** Most permits that shared holders may take together: a semaphore. */
  limit?: number;
  /** Permits that this holder takes of the limit. Default: 1. */
  permits?: number;
  /** True to tie the lock to its own connection. The server releases it when that closes. */
  session?: boolean;
  /** Time for which a place in the queue is kept without a request. Default: 10000. */
  keepMs?: number;
  /** True to renew the lease at a third of it. Default: true. */
  renew?: boolean;
  /** Callback that runs once for each loss. */
  onLost?: (lock: Lock) => void;
}

interface Grant {
  fence: number;
  holds: number;
  leaseMs: number;
  /** End of the lease, counted from before the command was sent. */
  until: number;
}

/** A lock on one or several keys. It counts holds: after two acquires it takes two releases. */
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
  /** End of the latest call. Calls run one by one, because each sends a count of holds. */
  #turn: Promise<unknown> = Promise.resolve();
  /** Cleanup of a wait that was given up. It must not hit the next wait with this token. */
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

  /** Fence of the grant while the lock is held, greater than the fence of every earlier grant. */
  get fence(): number | undefined {
    return this.#grant?.fence;
  }

  get lost(): boolean {
    return this.#lost || (this.#grant !== undefined && now() >= this.#grant.until);
  }

  /** Signal that is aborted with a LockLost when the lock is lost. */
  get signal(): AbortSignal {
    return this.#loss.signal;
  }

  /** Returns the fence, or undefined if the lock was not granted. Tries once without `waitMs`. */
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

  /** Releases one hold. Returns false if the lock was lost or not held. */
  async release(): Promise<boolean> {
    return (this.#grant !== undefined || this.#lost) && this.#inTurn(() => this.#release());
  }

  /** Sets the lease, also for later renewals. Returns false if the lock was lost. */
  async extend(leaseMs: number): Promise<boolean> {
    const grant = this.#held();
    if (!grant) return false;
    grant.leaseMs = leaseMs;
    const extended = await this.#extend(grant);
    this.#renewal.ring();
    return extended === true;
  }

  /** Returns the remaining lease on the server in ms, or 0 if the lock isn't held. */
  async left(): Promise<number> {
    const left = this.keys.map((key) => this.#send('CHECK', [], [key]));
    return Math.min(...(await Promise.all(left)).map(Number));
  }

  /** Releases one hold. Throws LockLost if the lock was lost. */
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
      // A refused request leaves nothing behind. After any other failure, the token may be in the
      // queue or hold the lock.
      if (code === undefined || end.aborted) await this.#leave();
      this.#closeUnlessHeld();
      throw code === 'DEADLOCK' ? new Deadlock((error as Error).message, { cause: error }) : error;
    }
  }

  /** Adds a hold to a held lock, which needs no wait. */
  async #again(grant: Grant, end: AbortSignal): Promise<Grant> {
    const granted = await unlessAborted(this.#resend(() => this.#request('ACQUIRE', []), this.signal), end);
    if (granted?.fence === grant.fence && this.#grant === grant) return granted;
    if (this.#grant === grant) this.#lose();
    throw this.#lossError();
  }

  /** Takes a place in the queue, and repeats the same request until it is granted. */
  async #wait(end: AbortSignal): Promise<Grant> {
    const bell = new Bell();
    const channel = this.#turns.channel(this.#link, this.keys[0]!);
    // Any subscriber can read the message, so it is not the token.
    const message = randomBytes(8).toString('hex');
    const place = ['KEEP', this.#keepMs, 'NOTIFY', channel, message];
    const ask = async () => {
      // A client may never settle a command whose connection broke, so limit the time.
      const granted = await unlessAborted(this.#request('QUEUE', place), within(this.#askMs));
      if (granted) return granted;
      let fault: unknown;
      const failed = (error: unknown) => {
        fault = error;
        bell.ring();
      };
      this.#turns.listen(this.#link, channel)?.then(bell.ring, failed);
      // Don't wait for the subscription, because the place must be kept even if that fails.
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

  /**
   * Time between two requests for a place. An unclaimed grant ends with KEEP, or with the lease if
   * that is shorter.
   */
  get #askMs(): number {
    return Math.min(this.#keepMs, this.#leaseMs) / 3;
  }

  /** Lease that was set last. */
  get #leaseMs(): number {
    return this.#grant?.leaseMs ?? this.#options.leaseMs ?? 30_000;
  }

  /** Sends a command for all keys. Several keys use the command that begins with an M. */
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

  /** Returns the grant. Marks it as lost if its lease has ended on the local clock. */
  #held(): Grant | undefined {
    if (this.#grant && now() >= this.#grant.until) this.#lose();
    return this.#grant;
  }

  /** Renews the grant while it is held, and detects its end. */
  async #keep(grant: Grant) {
    const renews = this.#options.renew !== false || this.#own !== undefined;
    while (this.#held() === grant) {
      const leftMs = grant.until - now();
      await this.#renewal.wait(renews ? Math.min(grant.leaseMs / 3, leftMs) : leftMs);
      // A renewal with an error is tried again at the next third, until the lease ends.
      if (renews && this.#grant === grant && now() < grant.until) await this.#extend(grant).catch(ignore);
      // After a stop of the process, read the received replies before the clock decides.
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
      // Some of the keys may still be held.
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
    // If a reply was lost, the command before may have released the lock. A session may instead
    // have ended with its connection.
    if (released !== undefined && sent > 1 && grant.holds === 0 && !this.#options.session) return true;
    if (grant.holds === 0 || this.#grant === grant) this.#lose();
    return false;
  }

  /** Repeats a command after temporary failures and timeouts. Returns undefined when stopped. */
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
    // Called later, so that its exception doesn't look like a failed renewal.
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

  /**
   * Cancels the wait, and releases a lock that was granted before the CANCEL. CANCEL comes first,
   * so that no grant can follow the RELEASE.
   */
  async #leave() {
    const holds = this.#grant?.holds ?? 0;
    const leave = async () => {
      const cancelled = await this.#send('CANCEL', [], this.keys.slice(0, 1));
      if (!Number(cancelled)) await this.#send('RELEASE', ['HOLDS', holds]);
    };
    // After this time, the place and the grant have ended anyway.
    const over = within(Math.max(this.#keepMs, this.#leaseMs));
    this.#leaving = this.#resend(leave, over).catch(ignore);
    await Promise.race([this.#leaving, new Bell().wait(CONFIRM_MS)]);
  }
}

/** Factory of locks over one client. */
export class Locks {
  readonly #link: Link;
  readonly #turns = new Turns().setMaxListeners(0);

  /** @internal */
  constructor(link: Link) {
    this.#link = link;
  }

  /** Returns a lock that is not acquired yet. Several keys are granted together or not at all. */
  lock(keys: Keys, options: LockOptions = {}): Lock {
    return new Lock(this.#link, this.#turns, keys, options);
  }

  /**
   * Returns an acquired lock. Waits without a limit unless `waitMs` is given. Throws NotAcquired
   * when that time is over.
   */
  async acquire(keys: Keys, options: LockOptions & WaitOptions = {}): Promise<Lock> {
    const lock = this.lock(keys, options);
    const fence = await lock.acquire({ waitMs: options.waitMs ?? Infinity, signal: options.signal });
    if (fence === undefined) throw new NotAcquired(`not free in time: ${lock.keys.join(', ')}`);
    return lock;
  }

  /** Runs `work` under a lock. Throws LockLost if the lock was lost before the work was done. */
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
