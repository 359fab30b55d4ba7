/**
 * One acquire: it asks, it waits, and it leaves if it ends without a grant. The states are those of
 * docs/internals/clients.md.
 */

import { type Commands, FIRST_PAUSE_MS, goOn, pauses } from './commands.js';
import { Call, type Sender } from './connection.js';
import type { Crowd, Crowds } from './crowd.js';
import { isOutage, NoReply, NotReplicatedError, UnavailableError } from './errors.js';
import type { Hold } from './grant.js';
import type { Options, Word } from './options.js';
import { Tie } from './tie.js';
import { type Bell, ignore, now } from './time.js';

/** Time after the limit in which a reply still counts. */
const GRACE_MS = 100;
/** Longest time without a sign that the server lives, while a call waits. */
const SIGN_OF_LIFE_MS = 2000;
/** Time of LEAVE for a token that has no command on its way. */
const SHORTEST_LEAVE_MS = 1;

/** A request of a program for a lock. */
export interface Wanted {
  readonly options: Options;
  readonly token: string;
  /** Time limit: 0 asks without waiting. */
  readonly limitMs: number;
  readonly signal: AbortSignal | undefined;
  hold(fence: number): Hold;
}

/** A command of the acquire. */
interface Request {
  readonly words: Word[];
  /** Time by which the reply must come. */
  readonly by: number;
  /** True if the server keeps a place after it has replied "not now". */
  readonly keepsPlace: boolean;
}

/** An acquire of one token until a limit. */
export class Acquire {
  /** True if the lock wasn't granted at once. */
  hasWaited = false;
  readonly #commands: Commands;
  readonly #wanted: Wanted;
  readonly #options: Options;
  readonly #call: Call;
  readonly #isTry: boolean;
  readonly #began = now();
  readonly #until: number;
  readonly #crowds: Crowds;
  /** Acquires of this process that wait for the same keys. */
  #crowd: Crowd | undefined;
  /** Message of this waiter, if it waits on a shared connection. */
  readonly #turn: { message: string; bell: Bell } | undefined;
  /** Connection of commands that block. */
  readonly #own: Tie | undefined;
  readonly #sender: Sender;
  /** True if the latest reply was "not now", and nothing failed since. */
  #isRefused = false;
  /** True if the server may have a place or a grant of this token. */
  #isKnown = false;

  constructor(commands: Commands, crowds: Crowds, wanted: Wanted) {
    const { servers, messages } = commands;
    const { options, token, limitMs, signal } = wanted;
    this.#commands = commands;
    this.#wanted = wanted;
    this.#options = options;
    this.#call = new Call(token, signal);
    this.#isTry = limitMs === 0;
    this.#until = this.#began + (limitMs || commands.timeoutMs);
    this.#crowds = crowds;
    if (options.replicas !== undefined) this.#own = new Tie(servers, 0, ignore);
    else if (!this.#isTry) this.#turn = messages.add();
    this.#sender = this.#own ?? (this.#isTry ? servers.holds : servers.asks);
  }

  /** Returns the grant, or undefined if the server said "not now" until the limit. */
  async run(): Promise<Hold | undefined> {
    let hold: Hold | undefined;
    try {
      this.#call.signal?.throwIfAborted();
      hold = await (this.#isTry ? this.#askAndTie() : this.#askInTurn());
    } catch (error) {
      this.#leave(!(error instanceof UnavailableError));
      throw error;
    } finally {
      if (this.#turn) this.#commands.messages.remove(this.#turn.message);
      this.#own?.close();
    }
    if (!hold) this.#leave(true);
    return hold;
  }

  async #askInTurn(): Promise<Hold | undefined> {
    const crowd = this.#crowds.of(this.#options.names.join('\n'));
    this.#crowd = crowd;
    if (!(await crowd.enter(this.#until, this.#call.signal))) {
      this.#endOutside(crowd);
      return undefined;
    }
    try {
      return await this.#askAndTie();
    } finally {
      crowd.leave();
    }
  }

  /** Ends an acquire whose limit was over before it could ask. */
  #endOutside(crowd: Crowd) {
    this.hasWaited = true;
    // The acquires that ask hear from the server at each sign of life, and note failures.
    if (crowd.repliedAt < this.#began - SIGN_OF_LIFE_MS - this.#commands.timeoutMs) {
      throw new UnavailableError('no answer from the server to the acquires before this one');
    }
  }

  async #askAndTie(): Promise<Hold | undefined> {
    const hold = await this.#askUntilGranted();
    if (hold && this.#options.session)
      await hold.tie(this.#until + this.#graceMs, this.#call.signal);
    return hold;
  }

  /** Time after the limit: the server replies to REPLICAS within the command timeout. */
  get #graceMs(): number {
    return GRACE_MS + (this.#own ? this.#commands.timeoutMs : 0);
  }

  async #askUntilGranted(): Promise<Hold | undefined> {
    let following = pauses();
    let cause: UnavailableError | undefined;
    let askedAt = -Infinity;
    for (;;) {
      try {
        if (this.#isRefused) {
          await this.#wait(askedAt);
          if (now() >= this.#until) return undefined;
        }
        askedAt = now();
        const fence = await this.#ask(askedAt);
        following = pauses();
        cause = undefined;
        if (this.#crowd) this.#crowd.repliedAt = now();
        if (fence !== undefined) {
          const leaseMs = this.#options.firstLeaseMs;
          const { sentAt } = this.#call;
          if (now() - sentAt <= leaseMs / 3) return this.#hold(fence, sentAt, leaseMs);
          // The grant may be over. If it isn't, the server sets its lease anew.
          continue;
        }
        this.#isRefused = true;
        if (this.#isTry) return undefined;
        this.hasWaited = true;
      } catch (error) {
        if (!isOutage(error)) throw error;
        const isLate = error.cause instanceof NoReply;
        if (now() >= this.#until && isLate && this.#isRefused) return undefined;
        this.#isRefused = false;
        this.hasWaited = true;
        // The end of a limit says nothing about the server.
        if (this.#crowd && (now() < this.#until || !isLate)) this.#crowd.repliedAt = -Infinity;
        if (this.#until === Infinity) this.#commands.report(error);
        // A last try that had little time says nothing about the cause.
        if (!cause || this.#until - askedAt > FIRST_PAUSE_MS) cause = error;
        await this.#commands.pause(following.next().value, this.#call, this.#until, cause);
      }
    }
  }

  /**
   * Asks once, and returns the fence of a grant. Notes whether the server may know this token
   * afterwards.
   */
  async #ask(askedAt: number): Promise<number | undefined> {
    const wasKnown = this.#isKnown;
    const { unanswered } = this.#call;
    const { words, by, keepsPlace } = this.#request(askedAt);
    this.#isKnown = true;
    let reply: unknown;
    try {
      reply = await this.#commands.ask(this.#options.name, words, this.#call, by, this.#sender);
    } catch (error) {
      if (this.#call.unanswered === unanswered && !(error instanceof NotReplicatedError))
        this.#isKnown = wasKnown;
      throw error;
    }
    if (Array.isArray(reply)) return Number(reply[1]);
    // A command before may be executed after this one.
    this.#isKnown = keepsPlace || unanswered > 0 || this.#call.unanswered > 0;
    return undefined;
  }

  #request(askedAt: number): Request {
    const { timeoutMs, attemptMs, messages } = this.#commands;
    const { token } = this.#call;
    const leftMs = this.#until - askedAt;
    const end = this.#until + (this.#isTry && !this.#own ? 0 : this.#graceMs);
    const by = askedAt + attemptMs + (this.#own ? timeoutMs : 0);
    if (this.#turn) {
      const channel = messages.channel(this.#options.name);
      const words = this.#options.queue(token, leftMs, channel, this.#turn.message);
      return { words, by: Math.min(by, end), keepsPlace: true };
    }
    if (this.#isTry || !this.hasWaited) {
      return {
        words: this.#options.acquire(token, timeoutMs),
        by: Math.min(by, end),
        keepsPlace: false,
      };
    }
    const blockMs = Math.min(SIGN_OF_LIFE_MS, this.#options.firstLeaseMs / 3, leftMs);
    const words = this.#options.wait(token, blockMs, leftMs, timeoutMs);
    return { words, by: Math.min(by + blockMs, end), keepsPlace: blockMs < leftMs };
  }

  /**
   * Waits for the message, or until the server must hear of this waiter again. After a LOCK.WAIT
   * there is nothing to wait for.
   */
  async #wait(askedAt: number) {
    if (!this.#turn) return;
    const { keepMs, firstLeaseMs, name } = this.#options;
    const until = Math.min(
      askedAt + Math.min(SIGN_OF_LIFE_MS, keepMs / 3, firstLeaseMs / 3),
      this.#until,
    );
    const { messages } = this.#commands;
    try {
      await messages.hear(name, this.#turn.bell, until, this.#call.signal);
    } catch (error) {
      this.#call.signal?.throwIfAborted();
      throw this.#commands.failed(error, name, this.#call, until - askedAt);
    }
    this.#call.signal?.throwIfAborted();
  }

  #hold(fence: number, sentAt: number, leaseMs: number): Hold {
    const hold = this.#wanted.hold(fence);
    hold.isUnclear = this.#call.unanswered > 0;
    hold.prolong(leaseMs, sentAt);
    return hold;
  }

  /** Ends what the server may have of this token, in the background. */
  #leave(reports: boolean) {
    if (!this.#isKnown) return;
    const { name, longestTraceMs } = this.#options;
    const { token, unanswered } = this.#call;
    const words = this.#options.leave(token, unanswered > 0 ? longestTraceMs : SHORTEST_LEAVE_MS);
    const call = new Call(token, undefined, true);
    const leave = (end: number) => this.#commands.ask(name, words, call, end);
    goOn(this.#commands.retry(leave, call, now() + longestTraceMs, reports));
  }
}
