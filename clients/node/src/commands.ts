/** Commands, each sent to the server of its key, and sent again after an outage. */

import type { Call, Line } from './connection.js';
import type { Crowd } from './crowd.js';
import type { UnavailableError } from './errors.js';
import type { Options, Word } from './options.js';
import { finalError, isOutage, isPassing, NoReply, outageOf, scrub } from './outages.js';
import { isClosed, type Servers } from './servers.js';
import { Bell, ignore, now } from './time.js';

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

/** Sends commands for the locks of one client. */
export class Commands {
  /** Acquires that wait, by their keys. */
  readonly crowds = new Map<string, Crowd>();
  /** Servers whose outage the observer knows of. */
  readonly #down = new Set<string>();

  constructor(
    readonly servers: Servers,
    /** Tells the program of an outage, or of a refusal, that ends no call. */
    readonly tellUnavailable: (error: unknown) => void,
  ) {}

  /** Sends a command once, and returns its reply. */
  async ask(
    key: string,
    words: Word[],
    call: Call,
    until: number,
    line: Line = this.servers.holds,
  ): Promise<unknown> {
    const leftMs = until - now();
    if (leftMs <= 0) throw new NoReply();
    const reply = await line.send(key, words, call, leftMs);
    if (this.#down.size > 0) this.#down.delete(this.servers.nameOf(key));
    return reply;
  }

  /** Sends a command about all keys of a lock. Returns true if the token holds each of them. */
  async holdsAll({ name, keys }: Options, words: Word[], call: Call, end: number, line?: Line) {
    return Number(await this.ask(name, words, call, end, line)) === keys.length;
  }

  /**
   * Repeats an action about a key after outages, until it succeeds. Throws an UnavailableError if
   * the time is over before.
   */
  async retry<T>(
    key: string,
    act: (end: number) => Promise<T>,
    call: Call,
    until: number,
    reports = call.isBackground,
  ): Promise<T> {
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      let fault: unknown;
      try {
        return await act(Math.min(until, now() + this.servers.attemptMs));
      } catch (error) {
        fault = this.#faultOf(error, key, call);
      }
      if (!isOutage(fault)) throw fault;
      if (reports) this.#report(fault);
      await new Bell().wait(Math.min(pauseMs, until - now()), call);
      if (now() >= until) throw fault;
    }
  }

  /** Repeats an action until the command timeout is over. */
  retryBriefly<T>(key: string, act: (end: number) => Promise<T>, call: Call): Promise<T> {
    return this.retry(key, act, call, now() + this.servers.timeoutMs);
  }

  /** Returns the error of a call: the outage, or the error that ends the call. */
  #faultOf(error: unknown, key: string, { token, signal }: Call): unknown {
    if (signal?.aborted) return signal.reason;
    if (!this.servers.link.isOpen) return isClosed();
    scrub(error, token);
    return isPassing(error) ? outageOf(error, this.servers.nameOf(key)) : finalError(error);
  }

  /** Tells the observer of an outage, once until the server replies again. */
  #report(fault: UnavailableError & { server: string }) {
    if (this.#down.has(fault.server)) return;
    this.#down.add(fault.server);
    this.tellUnavailable(fault);
  }
}

/** Lets work go on in the background. If it fails, the server ends a lock with its lease. */
export const goOn = (work: Promise<unknown>) => void work.catch(ignore);
