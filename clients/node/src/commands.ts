/** Commands, each sent to the server of its key, and sent again after an outage. */

import type { Call, Sender } from './connection.js';
import {
  finalError,
  isOutage,
  NoReply,
  noReply,
  outageIn,
  scrub,
  UnavailableError,
} from './errors.js';
import type { Messages } from './messages.js';
import type { Word } from './options.js';
import { isClosed, type Servers } from './servers.js';
import { Bell, ignore, now } from './time.js';

export const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

/** Yields the pause before each next try. */
export function* pauses(): Generator<number, never> {
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS))
    yield pauseMs;
}

/** Sends commands for the locks of one client. */
export class Commands {
  readonly servers: Servers;
  readonly messages: Messages;
  readonly timeoutMs: number;
  /** Tells the program of an outage, or of a refusal, that ends no call. */
  readonly tellUnavailable: (error: unknown) => void;
  /** Servers whose outage the observer knows of. */
  readonly #down = new Set<string>();

  constructor(
    servers: Servers,
    messages: Messages,
    timeoutMs: number,
    tellUnavailable: (error: unknown) => void,
  ) {
    this.servers = servers;
    this.timeoutMs = timeoutMs;
    this.messages = messages;
    this.tellUnavailable = tellUnavailable;
  }

  get attemptMs(): number {
    return this.servers.attemptMs;
  }

  /** Sends a command once, and returns its reply. Throws an UnavailableError after an outage. */
  async ask(
    key: string,
    words: Word[],
    call: Call,
    until: number,
    sender: Sender = this.servers.holds,
  ): Promise<unknown> {
    this.servers.check();
    const leftMs = until - now();
    try {
      if (leftMs <= 0) throw noReply();
      const reply = await sender.send(key, words, call, leftMs);
      if (this.#down.size > 0) this.#down.delete(this.servers.nameOf(key));
      return reply;
    } catch (error) {
      throw call.signal?.aborted ? call.signal.reason : this.failed(error, key, call, leftMs);
    }
  }

  /** Returns the error of a call: the outage, or the error that ends the call. */
  failed(error: unknown, key: string, call: Call, ms: number): unknown {
    if (!this.servers.link.isOpen) return isClosed();
    const server = this.servers.nameOf(key);
    if (call.token !== '') scrub(error, call.token);
    const text = outageIn(error, server);
    if (text === undefined) return finalError(error);
    const seconds = Math.max(Math.round(ms), 0) / 1000;
    const said = error instanceof NoReply ? `no answer from ${server} within ${seconds} s` : text;
    return Object.assign(new UnavailableError(said, { cause: error }), { server });
  }

  /** Repeats an action after outages, until it succeeds or the time is over. */
  async retry<T>(
    act: (end: number) => Promise<T>,
    call: Call,
    until: number,
    reports = call.isBackground,
  ): Promise<T> {
    let fault: UnavailableError | undefined;
    for (const pauseMs of pauses()) {
      const began = now();
      try {
        return await act(Math.min(until, began + this.attemptMs));
      } catch (error) {
        if (!isOutage(error)) throw error;
        // A last try that had little time says nothing about the cause.
        if (!fault || until - began > FIRST_PAUSE_MS) fault = error;
      }
      if (reports) this.report(fault);
      await this.pause(pauseMs, call, until, fault);
    }
    throw fault;
  }

  /** Pauses before the next try. Throws the fault if there is no time for one. */
  async pause(ms: number, call: Call, until: number, fault: unknown) {
    const leftMs = until - now();
    if (leftMs <= 0) throw fault;
    const beforeLastMs = leftMs - FIRST_PAUSE_MS;
    await new Bell().wait(
      Math.min(ms, beforeLastMs > 0 ? beforeLastMs : leftMs),
      call.signal,
      call.isBackground,
    );
    call.signal?.throwIfAborted();
  }

  /** Tells the observer of an outage, once until the server replies again. */
  report(fault: UnavailableError) {
    const { server = '' } = fault;
    if (this.#down.has(server)) return;
    this.#down.add(server);
    this.tellUnavailable(fault);
  }
}

/** Lets work go on in the background. If it fails, the server ends a lock with its lease. */
export const goOn = (work: Promise<unknown>) => void work.catch(ignore);
