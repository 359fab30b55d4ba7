import { randomBytes } from 'node:crypto';

import type { Connection, Link, Word } from './connection.js';
import { UnavailableError } from './errors.js';
import { ConnectionFailure, finalError, mayBeDone, outageIn, scrub } from './failures.js';
import type { Terms } from './options.js';
import { backgroundPause, Bell, ignore, now, type Pace, unlessAborted } from './time.js';
import type { Turns } from './turns.js';

const FIRST_PAUSE_MS = 50;
const LAST_PAUSE_MS = 1000;
/** Longest wait for the server to confirm a cancelled wait. The cleanup continues after it. */
const CONFIRM_MS = 150;
/** Shortest time for a reply. A shorter limit ends only when the server has said who has the lock. */
const LEAST_ATTEMPT_MS = 100;
/** Longest time between two requests of a waiter, which also show that the server is alive. */
const LONGEST_SILENCE_MS = 3000;

const TOKEN_BYTES = 16;
let randomness = Buffer.alloc(0);

/** Returns 128 random bits in hex. perf: the system's generator takes as long for many tokens. */
function newToken(): string {
  if (randomness.length === 0) randomness = randomBytes(64 * TOKEN_BYTES);
  const token = randomness.toString('hex', 0, TOKEN_BYTES);
  randomness = randomness.subarray(TOKEN_BYTES);
  return token;
}

/** The parts that all locks of one Locks share. */
export interface Backend {
  readonly link: Link;
  readonly connection: Connection;
  readonly turns: Turns;
  readonly commandTimeoutMs: number;
  /** Longest time of one attempt. */
  readonly attemptMs: number;
  readonly pace: Pace;
  /** Opens a connection that is not shared. */
  connect(replaced: () => void): Connection;
  disconnect(connection: Connection): void;
  /** Reports an outage, or a failed renewal, of a call that nobody gets an error from. */
  report(error: unknown): void;
}

/** Limits of one call, and what is known about it. */
export interface Call {
  /** End of the call, by the clock of `now`. It may move during the call. */
  readonly until: number;
  readonly signal?: AbortSignal | undefined;
  /** True if an outage is reported when it begins, because no error tells of it soon. */
  readonly reports?: boolean;
  /** True if the process may end before the call. */
  readonly background?: boolean;
}

/** Call that may enter the server's queue. */
export interface AcquireCall extends Call {
  readonly waits: boolean;
  /** Holds that the token has after the grant. */
  readonly holds: number;
  /** Lease that the call asks for. */
  readonly leaseMs: number;
  /** True once the first command was answered without a grant, or failed. */
  waited: boolean;
  /** True if a command may have had an effect that no reply told of. */
  unsure: boolean;
}

/** A grant, with times by the clock of `now`, counted from before the command was sent. */
export interface Grant {
  readonly fence: number;
  readonly since: number;
  leaseMs: number;
  until: number;
  /** End of the longest hold. */
  endsAt: number;
  holds: number;
  /** Sending time of the command that set the lease. */
  setAt: number;
}

/** The commands of one token for its keys. */
export class Claim {
  readonly token: string;
  readonly #backend: Backend;
  readonly #keys: readonly string[];
  readonly #terms: Terms;
  /** Words of every request: mode and data. */
  readonly #mode: Word[];
  /** Connection of a session, or of a grant that waits for replicas. */
  #own?: Connection | undefined;
  readonly #ownReplaced: () => void;
  /** Cleanup of a call that was given up. It must not hit the next call with this token. */
  #leaving?: Promise<unknown> | undefined;
  #isUnanswered = false;
  /** Outage since the latest reply. */
  outage?: UnavailableError | undefined;
  /** True while the token has a place in the server's queue. */
  isPlaced = false;

  /** `ownReplaced` is called when the session's connection was lost, or is there again. */
  constructor(backend: Backend, keys: readonly string[], terms: Terms, ownReplaced: () => void) {
    this.#backend = backend;
    this.#keys = keys.map((key) => backend.link.prefix + key);
    this.#terms = terms;
    this.#ownReplaced = ownReplaced;
    this.token = terms.token ?? newToken();
    const { shared, limit, permits, data } = terms;
    this.#mode = [
      ...(shared || limit !== undefined ? ['SHARED'] : []),
      ...(limit === undefined ? [] : ['LIMIT', String(limit)]),
      ...(permits === undefined ? [] : ['PERMITS', String(permits)]),
      ...(data === undefined ? [] : ['DATA', data]),
    ];
  }

  /**
   * True if a cleanup with this token isn't confirmed, or a command had no reply and may still be on its
   * way to the server, so that another token is the safer one.
   */
  get isSpent(): boolean {
    return this.#leaving !== undefined || this.#isUnanswered;
  }

  /** Acquires the keys. Returns undefined if another owner has them. Leaves nothing behind then. */
  async acquire(call: AcquireCall): Promise<Grant | undefined> {
    if (this.#leaving && !(await this.left(call.until - now(), call.signal))) {
      call.signal?.throwIfAborted();
      throw this.outage ?? new UnavailableError('an earlier call with this token is not cleaned up');
    }
    try {
      const grant = await (call.waits ? this.#wait(call) : this.#try(call));
      if (!grant) this.closeOwn();
      return grant;
    } catch (error) {
      if (call.unsure) void this.leave(call.holds - 1, call.signal?.aborted === true);
      if (call.holds === 1) this.closeOwn();
      throw error;
    }
  }

  /**
   * Acquires keys that the token already holds. A failure undoes nothing, so the keys stay locked
   * until their lease ends.
   */
  adopt(call: AcquireCall): Promise<Grant | undefined> {
    return this.#try(call);
  }

  async #try(call: AcquireCall): Promise<Grant | undefined> {
    const grant = await this.#resendUnsure((ms) => this.#request('ACQUIRE', [], call, ms), call);
    return grant && (await this.#confirm(grant, call)) ? grant : undefined;
  }

  /** Takes a place in the queue, and repeats the same request until it is granted. */
  async #wait(call: AcquireCall): Promise<Grant | undefined> {
    const { link, connection, turns } = this.#backend;
    const bell = new Bell();
    const channel = turns.channel(link, this.#keys[0]!);
    const message = turns.add(bell.ring);
    const place = ['KEEP', String(this.#terms.keepMs), 'NOTIFY', channel, message];
    const ask = (ms: number) => this.#request('QUEUE', place, call, ms);
    let fault: unknown;
    const failed = (error: unknown) => {
      // Without messages the waiter asks from time to time. A refusal is the caller's to know.
      if (outageIn(error, link.address) === undefined) fault = finalError(error);
      bell.ring();
    };
    // An unclaimed grant ends with KEEP, or with the lease if that is shorter.
    const pauseMs = Math.min(this.#terms.keepMs / 3, this.#terms.leaseMs / 3, LONGEST_SILENCE_MS);
    try {
      while (!fault) {
        const grant = await this.#resendUnsure(ask, call);
        if (grant && (await this.#confirm(grant, call))) return grant;
        this.isPlaced = true;
        call.waited = true;
        call.unsure = true;
        // Don't wait for the subscription, because the place must be kept even if that fails.
        turns.listen(connection, channel)?.then(bell.ring, failed);
        await bell.wait(Math.min(pauseMs, call.until - now()), call.signal);
        call.signal?.throwIfAborted();
        if (now() >= call.until) return await this.#giveUp(call);
      }
      throw fault;
    } finally {
      this.isPlaced = false;
      turns.remove(message);
    }
  }

  /**
   * Ends a wait whose time is over, which the server has to confirm: else nobody knows who has the
   * lock. A place that is gone may have become a grant, and that came in time.
   */
  async #giveUp(call: AcquireCall): Promise<Grant | undefined> {
    const end = { ...call, until: now() + CONFIRM_MS };
    const cancelled = await this.#resend((ms) => this.#send('CANCEL', [], ms, this.#keys.slice(0, 1)), end);
    call.unsure = Number(cancelled) === 0;
    if (!call.unsure) return undefined;
    const grant = await this.#try(end);
    call.unsure = false;
    return grant;
  }

  /** Waits for a cleanup. Returns false if the server doesn't confirm it in time. */
  async left(ms = CONFIRM_MS, signal?: AbortSignal): Promise<boolean> {
    const bell = new Bell();
    void (this.#leaving ?? Promise.resolve()).then(bell.ring);
    await bell.wait(ms, signal);
    // A busy process may have the reply, and not have read it yet.
    await new Promise(setImmediate);
    return this.#leaving === undefined;
  }

  /** Resends a request. Its effect is unknown until a reply tells of it and of all earlier attempts. */
  #resendUnsure<T>(send: (ms: number) => Promise<T>, call: AcquireCall): Promise<T> {
    const wasUnsure = call.unsure;
    const attempt = async (ms: number) => {
      const wasUnsureBefore = call.unsure;
      call.unsure = true;
      try {
        const reply = await send(ms);
        call.unsure = wasUnsure;
        return reply;
      } catch (error) {
        call.waited = true;
        if (!mayBeDone(error)) call.unsure = wasUnsureBefore;
        throw error;
      }
    };
    return this.#resend(attempt, call);
  }

  async #request(verb: string, place: Word[], { holds, leaseMs }: AcquireCall, ms: number): Promise<Grant | undefined> {
    const { maxHoldMs, reentrant } = this.#terms;
    const since = now();
    const counted = reentrant ? ['HOLDS', String(holds)] : [];
    const reply = await this.#send(verb, ['PX', String(leaseMs), ...counted, ...this.#mode, ...place], ms);
    if (!Array.isArray(reply)) return undefined;
    const until = since + leaseMs;
    if (now() >= until) throw new ConnectionFailure('the grant was over when its reply came');
    return { fence: Number(reply[1]), since, leaseMs: this.#terms.leaseMs, until, endsAt: since + maxHoldMs, holds, setAt: since };
  }

  /** Ties a grant to its session, and waits for its replicas. Returns false if the grant is gone. */
  async #confirm(grant: Grant, call: AcquireCall): Promise<boolean> {
    const { session, replicas } = this.#terms;
    if (!session && replicas === undefined) return true;
    call.unsure = true;
    const leaseMs = Math.ceil(grant.until - now());
    const confirmed = await this.#resend((ms) => this.#prolong(leaseMs, ms, replicas), call);
    if (confirmed) call.unsure = false;
    if (!session) this.closeOwn();
    return confirmed;
  }

  /**
   * Sets the lease. Returns false if the token doesn't hold all the keys. Calls `unanswered` after
   * each attempt that may have set the lease and has no reply.
   */
  extend(leaseMs: () => number, unanswered: () => void, call: Call): Promise<boolean> {
    const attempt = async (ms: number) => {
      const askedMs = leaseMs();
      try {
        // A later reply would be of a lease that is over.
        return await this.#prolong(askedMs, Math.min(ms, askedMs));
      } catch (error) {
        if (mayBeDone(error)) unanswered();
        throw error;
      }
    };
    return this.#resend(attempt, call);
  }

  async #prolong(leaseMs: number, ms: number, replicas?: number): Promise<boolean> {
    const { session } = this.#terms;
    // The server's own word, that too few replicas have it, comes at the end of WITHIN.
    const replicated = replicas === undefined ? [] : ['REPLICAS', String(replicas), 'WITHIN', String(Math.max(1, Math.floor(ms)))];
    const options = ['PX', String(leaseMs), ...(session ? ['SESSION'] : []), ...replicated];
    if (!session && !replicas) return Number(await this.#send('EXTEND', options, ms)) > 0;
    this.#own ??= this.#backend.connect(this.#ownReplaced);
    return Number(await this.#send('EXTEND', options, ms + (replicas ? CONFIRM_MS : 0), this.#keys, this.#own)) > 0;
  }

  /**
   * Ends holds, until `holds` are left. If none is left, the keys stay locked until `keepUntil`.
   * Returns false if the token held nothing. After an outage this goes on in the background.
   */
  async release({ holds, until }: Pick<Grant, 'holds' | 'until'>, keepUntil: number, call: Call): Promise<boolean> {
    const { reentrant, session } = this.#terms;
    let unsure = false;
    const send = (ms: number) => {
      const restMs = Math.ceil(keepUntil - now());
      if (holds > 0 || restMs <= 0) return this.#send('RELEASE', reentrant ? ['HOLDS', String(holds)] : [], ms);
      return this.#send('EXTEND', ['PX', String(restMs), ...(session ? ['NOSESSION'] : [])], ms);
    };
    const attempt = async (ms: number) => {
      try {
        return await send(ms);
      } catch (error) {
        unsure ||= mayBeDone(error);
        throw error;
      }
    };
    try {
      const released = await this.#resend(attempt, call);
      // If a reply was lost, the command before may have released the lock. A session may instead
      // have ended with its connection, and a lock that is to stay would still be there.
      return Number(released) === this.#keys.length || (unsure && holds === 0 && !session && keepUntil <= now());
    } catch (error) {
      if (error instanceof UnavailableError) void this.#cleanUp(send, until, false);
      throw error;
    }
  }

  /** Returns the remaining lease on the server in ms, the least of all keys, or 0. */
  async leaseLeft(call: Call): Promise<number> {
    const check = (ms: number) => Promise.all(this.#keys.map((key) => this.#send('CHECK', [], ms, [key])));
    return Math.min(...(await this.#resend(check, call)).map(Number));
  }

  /**
   * Gives up the place and the grant, in the background. CANCEL comes first, so that no grant can
   * follow the RELEASE. Both are sent at once: a stopped server reads them behind the request.
   */
  leave(holds: number, reports: boolean): Promise<unknown> {
    const { keepMs, leaseMs, reentrant } = this.#terms;
    const counted = reentrant ? ['HOLDS', String(holds)] : [];
    const leave = (ms: number) =>
      Promise.all([this.#send('CANCEL', [], ms, this.#keys.slice(0, 1)), this.#send('RELEASE', counted, ms)]);
    // After this time, the place and the grant have ended anyway.
    return this.#cleanUp(leave, now() + Math.max(keepMs, leaseMs), reports);
  }

  #cleanUp(send: (ms: number) => Promise<unknown>, until: number, reports: boolean): Promise<unknown> {
    const leaving = this.#resend(send, { until, reports, background: true })
      .catch(ignore)
      .finally(() => {
        if (this.#leaving === leaving) this.#leaving = undefined;
      });
    return (this.#leaving = leaving);
  }

  closeOwn() {
    if (this.#own) this.#backend.disconnect(this.#own);
    this.#own = undefined;
  }

  /** Sends a command for all keys. Several keys use the command that begins with an M. */
  #send(verb: string, options: Word[], ms: number, keys = this.#keys, connection = this.#backend.connection) {
    const command = keys.length === 1 ? [`LOCK.${verb}`] : [`LOCK.M${verb}`, String(keys.length)];
    return connection.send(keys[0]!, [...command, ...keys, this.token, ...options], ms);
  }

  /** Repeats a command after outages, until the end of the call. */
  async #resend<T>(send: (ms: number) => Promise<T>, call: Call): Promise<T> {
    const { link, attemptMs, report } = this.#backend;
    const { signal } = call;
    let reported = false;
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LAST_PAUSE_MS)) {
      signal?.throwIfAborted();
      try {
        const reply = await unlessAborted(send(Math.min(attemptMs, Math.max(call.until - now(), LEAST_ATTEMPT_MS))), signal);
        this.outage = undefined;
        return reply;
      } catch (error) {
        this.#isUnanswered ||= signal?.aborted === true;
        signal?.throwIfAborted();
        scrub(error, this.token);
        const cause = outageIn(error, link.address);
        if (cause === undefined) throw finalError(error);
        this.outage = new UnavailableError(cause, { cause: error });
        this.#isUnanswered = true;
        if (call.reports && !reported) report(this.outage);
        reported = true;
        const leftMs = call.until - now();
        const mayPauseMs = Math.min(pauseMs, leftMs);
        if (leftMs > 0) await (call.background ? backgroundPause(mayPauseMs) : new Bell().wait(mayPauseMs, signal));
        if (now() >= call.until) throw this.outage;
      }
    }
  }
}
