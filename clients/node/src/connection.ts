import { ConnectionFailure, markUnsent, pointsElsewhere } from './failures.js';
import { UnavailableError } from './errors.js';
import { after, ignore, now } from './time.js';

export type Word = string | Buffer;

/**
 * One connection of a client library to a server, or its connections to a cluster. It neither
 * reconnects nor keeps commands for later.
 */
export interface Wire {
  /** Settles when the wire can take commands, or with the reason why it never will. */
  readonly ready: Promise<unknown>;
  send(key: string, words: Word[]): Promise<unknown>;
  /** Subscribes to a channel. Calls `missed` when messages may have been lost, which a failure isn't. */
  subscribe(channel: string, heard: (message: string) => void, missed: () => void): Promise<unknown>;
  close(): void;
}

/** Interface of a user's client to its locks. Each supported library has a file that implements it. */
export interface Link {
  /** False once the client was closed for good. */
  readonly open: boolean;
  /** Prefix that the client puts before every key. */
  readonly prefix: string;
  readonly cluster: boolean;
  /** True if another server can take over, so that it is worth looking for it soon. */
  readonly failsOver: boolean;
  /** Address of the server, for messages to people. */
  readonly address: string;
  /** Opens a wire with the client's settings. Calls `ended` when it closes. */
  connect(timeoutMs: number, ended: () => void): Wire;
  /** Calls the listener each time the client is closed. */
  onClose(listener: () => void): void;
}

interface Exchange {
  wire: Wire;
  sentAt: number;
  reject(reason: Error): void;
}

/**
 * A connection of the library's own, made when it is first used. A wire that fails is used until
 * its successor is ready: in a cluster the other nodes still answer, and a stopped server reads
 * the commands in the order in which they were sent.
 */
export class Connection {
  readonly #link: Link;
  readonly #timeoutMs: number;
  readonly #replaced: () => void;
  #wire?: Wire;
  #opening?: Promise<Wire>;
  #closed = false;
  readonly #exchanges = new Set<Exchange>();

  /** `replaced` is called when a wire was lost, and when a new one is ready. */
  constructor(link: Link, timeoutMs: number, replaced: () => void) {
    this.#link = link;
    this.#timeoutMs = timeoutMs;
    this.#replaced = replaced;
  }

  /** Sends a command. Rejects if it isn't answered within `ms`, at most the command timeout. */
  send(key: string, words: Word[], ms: number): Promise<unknown> {
    const wire = this.#wire;
    if (wire) return this.#exchange(wire, key, words, ms, ms);
    const until = now() + ms;
    const send = (opened: Wire) => this.#exchange(opened, key, words, ms, until - now());
    return this.#within(this.#open(), ms).then(send, (error) => {
      markUnsent(error);
      throw error;
    });
  }

  async subscribe(channel: string, heard: (message: string) => void, missed: () => void) {
    const wire = this.#wire ?? (await this.#open());
    await this.#within(wire.subscribe(channel, heard, missed), this.#timeoutMs);
  }

  close() {
    this.#closed = true;
    const wire = this.#wire;
    this.#wire = undefined;
    if (wire) this.#drop(wire, 'the client was closed');
  }

  /** Closes the connection until it is used again. */
  suspend() {
    this.close();
    this.#closed = false;
  }

  /** Sends a command on a wire. `leftMs` is the rest of `ms`, the time of the whole call. */
  #exchange(wire: Wire, key: string, words: Word[], ms: number, leftMs: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const exchange = { wire, sentAt: now(), reject };
      this.#exchanges.add(exchange);
      let isSettled = false;
      const timer = after(leftMs, () =>
        // After a stop of the process, read the received replies before the clock decides.
        setImmediate(() => {
          if (isSettled) return;
          if (this.#isSilent(wire)) this.#replace(wire);
          reject(this.#noAnswer(ms));
        }),
      );
      const settled = () => {
        isSettled = true;
        clearTimeout(timer);
        this.#exchanges.delete(exchange);
      };
      wire.send(key, words).then(
        (reply) => {
          settled();
          resolve(reply);
        },
        (error) => {
          settled();
          if (pointsElsewhere(error)) this.#replace(wire);
          reject(error);
        },
      );
    });
  }

  /** Returns true if a command has been without an answer for the command timeout. */
  #isSilent(wire: Wire): boolean {
    // Timers have whole milliseconds, and may fire a little early by this clock.
    const longAgo = now() - this.#timeoutMs + 2;
    for (const each of this.#exchanges) if (each.wire === wire) return each.sentAt <= longAgo;
    return false;
  }

  #replace(wire: Wire) {
    if (this.#wire === wire) this.#open().catch(ignore);
  }

  #open(): Promise<Wire> {
    return (this.#opening ??= this.#connect().finally(() => (this.#opening = undefined)));
  }

  async #connect(): Promise<Wire> {
    if (this.#closed || !this.#link.open) throw new UnavailableError('the client is closed');
    const wire = this.#link.connect(this.#timeoutMs, () => this.#ended(wire));
    try {
      await this.#within(wire.ready, this.#timeoutMs);
      if (this.#closed || !this.#link.open) throw new UnavailableError('the client is closed');
    } catch (error) {
      wire.close();
      throw error;
    }
    const before = this.#wire;
    this.#wire = wire;
    if (before) this.#drop(before, 'the connection was replaced');
    this.#replaced();
    return wire;
  }

  #ended(wire: Wire) {
    if (this.#wire !== wire) return;
    this.#wire = undefined;
    this.#replaced();
  }

  #drop(wire: Wire, reason: string) {
    for (const each of this.#exchanges) {
      if (each.wire !== wire) continue;
      this.#exchanges.delete(each);
      each.reject(new ConnectionFailure(reason));
    }
    wire.close();
  }

  #within<T>(work: Promise<T>, ms: number): Promise<T> {
    return new Promise((resolve, reject) => {
      const timer = after(ms, () => reject(this.#noAnswer(ms)));
      work.then(resolve, reject).finally(() => clearTimeout(timer));
    });
  }

  #noAnswer(ms: number) {
    const seconds = Math.max(Math.round(ms), 0) / 1000;
    return new ConnectionFailure(`no answer from ${this.#link.address} within ${seconds} s`);
  }
}
