/**
 * One acquire: it asks, it waits, and it leaves if it ends without a grant. The states are those of
 * docs/internals/clients.md.
 */

import { randomUUID } from 'node:crypto';

import { type Commands, goOn } from './commands.js';
import { Call, type Line } from './connection.js';
import { type Crowd, crowdOf } from './crowd.js';
import { UnavailableError } from './errors.js';
import type { Options, Word } from './options.js';
import { isOutage, isPassing, NoReply, scrub } from './outages.js';
import { type Bell, now } from './time.js';

/** Time after the limit in which a reply still counts. */
const GRACE_MS = 100;
/** Longest time without a sign that the server lives, while a call waits. */
const SIGN_OF_LIFE_MS = 2000;
/** Time of LEAVE for a token that has no command on its way. */
const SHORTEST_LEAVE_MS = 1;

/** Returns random bits in hex. perf: the system's generator takes much longer for each token. */
const newToken = () => randomUUID().replaceAll('-', '');

/** A grant of the server. */
export interface Granted {
  readonly token: string;
  readonly fence: number;
  /** Time at which the command was sent that the server granted. */
  readonly sentAt: number;
  /** True if a command that asked for this grant may still arrive. */
  readonly isUnclear: boolean;
  /** Connection that a session is tied to. */
  readonly line?: Line | undefined;
}

/** An acquire until a limit. */
export class Acquire {
  /** True if the lock wasn't granted at once. */
  hasWaited = false;
  readonly #isTry: boolean;
  readonly #began = now();
  readonly #until: number;
  /** Message of this waiter, and its bell. */
  readonly #turn: { message: string; bell: Bell };
  readonly #call: Call;
  /** Acquires of this process that wait for the same keys. */
  #crowd: Crowd | undefined;
  /** True if the latest reply was "not now", and nothing failed since. */
  #isRefused = false;
  /** True if the latest reply left a place or a grant of this token at the server. */
  #hasPlace = false;

  /** The limit is 0 for an acquire that asks without waiting. */
  constructor(
    readonly commands: Commands,
    readonly options: Options,
    limitMs: number,
    readonly signal: AbortSignal | undefined,
  ) {
    this.#isTry = limitMs === 0;
    this.#until = this.#began + (limitMs || commands.servers.timeoutMs);
    this.#turn = commands.servers.messages.add();
    this.#call = new Call(newToken(), signal);
  }

  /** Returns the grant, or undefined if the server said "not now" until the limit. */
  async run(): Promise<Granted | undefined> {
    try {
      this.signal?.throwIfAborted();
      const granted = await (this.#isTry ? this.#untilGranted() : this.#inTurn());
      if (!granted) this.#leave(true);
      return granted;
    } catch (error) {
      this.#leave(!(error instanceof UnavailableError));
      throw error;
    } finally {
      this.commands.servers.messages.remove(this.#turn.message);
    }
  }

  async #inTurn(): Promise<Granted | undefined> {
    const crowd = crowdOf(this.commands.crowds, this.options.names.join('\n'));
    this.#crowd = crowd;
    if (!(await crowd.enter(this.#until, this.#call))) return this.#endOutside(crowd);
    try {
      return await this.#untilGranted();
    } finally {
      crowd.leave();
    }
  }

  /** Ends an acquire whose limit was over before it could ask. */
  #endOutside({ repliedAt }: Crowd): undefined {
    this.hasWaited = true;
    // The acquires that ask hear from the server at each sign of life, and note failures.
    if (repliedAt < this.#began - SIGN_OF_LIFE_MS - this.commands.servers.timeoutMs)
      throw new UnavailableError('no reply of the server to the acquires before this one');
  }

  async #untilGranted(): Promise<Granted | undefined> {
    const { name } = this.options;
    const isEndless = this.#until === Infinity;
    for (;;) {
      try {
        const ask = () => this.#ask();
        const granted = await this.commands.retry(name, ask, this.#call, this.#until, isEndless);
        if (granted) return granted;
      } catch (error) {
        if (isOutage(error) && this.#isRefused) return undefined;
        throw error;
      }
      if (this.#isTry) return undefined;
      await this.#hear();
      if (now() >= this.#until) return undefined;
    }
  }

  /** Asks once, and notes the server's reply. */
  async #ask(): Promise<Granted | undefined> {
    try {
      const { servers } = this.commands;
      const line = this.#isTry ? servers.holds : servers.asks;
      const end = Math.min(now() + servers.attemptMs, this.#until + GRACE_MS);
      const reply = await this.#send(line, this.#words(), end);
      if (!reply) return undefined;
      if (this.options.session || this.options.replicas !== undefined)
        return await this.#confirm(line);
      // The grant may be over. If it isn't, the server sets its lease anew.
      return this.#isLate(reply) ? await this.#ask() : reply;
    } catch (error) {
      this.hasWaited = true;
      const isEnd = this.signal?.aborted || (error instanceof NoReply && now() >= this.#until);
      // The end of a limit or a call says nothing about the server.
      if (!isEnd && isPassing(error)) {
        this.#isRefused = false;
        if (this.#crowd) this.#crowd.repliedAt = -Infinity;
      }
      throw error;
    }
  }

  #words(): Word[] {
    const { token } = this.#call;
    if (this.#isTry) return this.options.acquire(token);
    const { messages } = this.commands.servers;
    const channel = messages.channel(this.options.name);
    return this.options.queue(token, this.#until - now(), channel, this.#turn.message);
  }

  async #send(line: Line, words: Word[], end: number): Promise<Granted | undefined> {
    const call = this.#call;
    const reply = await this.commands.ask(this.options.name, words, call, end, line);
    if (this.#crowd) this.#crowd.repliedAt = now();
    this.#isRefused = !Array.isArray(reply);
    this.#hasPlace = !this.#isRefused || !this.#isTry;
    if (!Array.isArray(reply)) {
      this.hasWaited = true;
      return undefined;
    }
    const { token, sentAt, unanswered } = call;
    return { token, fence: Number(reply[1]), sentAt, isUnclear: unanswered > 0 };
  }

  #isLate({ sentAt }: Granted): boolean {
    return now() - sentAt > this.options.firstLeaseMs / 3;
  }

  /** Asks for the grant again on a connection of its own, which a session keeps. */
  async #confirm(shared: Line): Promise<Granted | undefined> {
    const { name, session, replicas } = this.options;
    const { servers } = this.commands;
    let line: Line | undefined;
    try {
      line = servers.openTo(name, shared);
      const words = this.options.confirm(this.#call.token, servers.timeoutMs);
      const end =
        replicas === undefined
          ? Math.min(now() + servers.attemptMs, this.#until + GRACE_MS)
          : now() + servers.timeoutMs + GRACE_MS;
      const granted = await this.#send(line, words, end);
      if (granted && this.#isLate(granted)) throw new NoReply();
      if (granted && session) return { ...granted, line };
      line.close();
      return granted;
    } catch (error) {
      line?.close();
      // The command may arrive late, and the close end a later grant of the token.
      scrub(error, this.#call.token);
      this.#leave(false);
      this.#call.begin(newToken());
      throw error;
    }
  }

  /** Waits for the message, or until the server must hear of this waiter again. */
  async #hear() {
    const { keepMs, firstLeaseMs, name } = this.options;
    const signMs = Math.min(SIGN_OF_LIFE_MS, keepMs / 3, firstLeaseMs / 3);
    const until = Math.min(this.#call.sentAt + signMs, this.#until);
    await this.commands.servers.messages.hear(name, this.#turn.bell, until, this.signal);
  }

  /** Ends what the server may have of this token, in the background. */
  #leave(reports: boolean) {
    const { token, unanswered } = this.#call;
    if (!this.#hasPlace && unanswered === 0) return;
    this.#hasPlace = false;
    const { name, longestTraceMs } = this.options;
    const words = this.options.leave(token, unanswered > 0 ? longestTraceMs : SHORTEST_LEAVE_MS);
    const call = new Call(token, undefined, true);
    const leave = (end: number) => this.commands.ask(name, words, call, end);
    goOn(this.commands.retry(name, leave, call, now() + longestTraceMs, reports));
  }
}
