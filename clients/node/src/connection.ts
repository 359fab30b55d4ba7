/**
 * Connections that are duplicates of the program's client, and the commands on them without a
 * reply.
 */

import { ConnectionFailure, NoReply, noReply, pointsElsewhere, replyCode } from './errors.js';
import type { Word } from './options.js';
import { after, ignore, now, unlessAborted, within } from './time.js';

/** A connected duplicate of a client. It neither reconnects nor keeps commands for later. */
export interface Wire {
  /** Settles when the wire can take commands, or with the reason why it never will. */
  readonly ready: Promise<unknown>;
  send(key: string, words: Word[]): Promise<unknown>;
  subscribe(channel: string, heard: (message: string) => void): Promise<unknown>;
  ping(): Promise<unknown>;
  close(): void;
}

/** Opens a wire, and calls `ended` when it has closed. */
export type Opens = (ended: () => void) => Wire;

/** The commands of one call of the program. */
export class Call {
  /** Number of commands that got no reply, and may still arrive. */
  unanswered = 0;
  /** Time at which the latest command was sent. A lease counts from then or later. */
  sentAt = -Infinity;

  constructor(
    readonly token: string,
    readonly signal?: AbortSignal,
    /** True if the process may end before the call. */
    readonly isBackground = false,
  ) {}
}

/** Sends commands to the server of a key. */
export interface Sender {
  /** Returns the reply. Rejects if there is none within the time, or if the call is aborted. */
  send(key: string, words: Word[], call: Call, ms: number): Promise<unknown>;
}

const lost = () => new ConnectionFailure('the connection was lost');

interface Exchange {
  readonly sentAt: number;
  reject(reason: Error): void;
}

/** One wire, and what is known of its replies. */
export class Line implements Sender {
  readonly wire: Wire;
  readonly #attemptMs: number;
  readonly #ended: () => void;
  readonly #unanswered = new Set<Exchange>();
  #isReady = false;
  #isClosed = false;

  /** `ended` is called when the line has closed. */
  constructor(opens: Opens, attemptMs: number, ended: () => void) {
    this.#attemptMs = attemptMs;
    this.#ended = ended;
    this.wire = opens(() => this.close());
    this.wire.ready.catch(ignore);
  }

  /** Waits until the wire can take commands. Closes it if that takes too long. */
  async open() {
    try {
      await within(this.wire.ready, this.#attemptMs, noReply, true);
      if (this.#isClosed) throw lost();
      this.#isReady = true;
    } catch (error) {
      this.close();
      throw error;
    }
  }

  async send(key: string, words: Word[], call: Call, ms: number): Promise<unknown> {
    const until = now() + ms;
    if (!this.#isReady)
      await within(unlessAborted(this.open(), call.signal), ms, noReply, call.isBackground);
    if (this.#isClosed) throw lost();
    return this.#exchange(key, words, call, until - now());
  }

  #exchange(key: string, words: Word[], call: Call, ms: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const exchange = { sentAt: now(), reject };
      call.sentAt = exchange.sentAt;
      this.#unanswered.add(exchange);
      call.unanswered += 1;
      // A process that was stopped reads the replies that it has received before the clock decides.
      const timer = after(ms, () => setImmediate(() => reject(noReply())), call.isBackground);
      const stop = () => reject(call.signal!.reason);
      call.signal?.addEventListener('abort', stop);
      const settled = () => {
        clearTimeout(timer);
        call.signal?.removeEventListener('abort', stop);
        this.#unanswered.delete(exchange);
      };
      this.wire.send(key, words).then(
        (reply) => {
          settled();
          call.unanswered -= 1;
          resolve(reply);
        },
        (error) => {
          settled();
          if (replyCode(error) !== undefined) call.unanswered -= 1;
          reject(error);
        },
      );
    });
  }

  /** Time since the oldest command without a reply was sent. */
  get silentMs(): number {
    for (const { sentAt } of this.#unanswered) return now() - sentAt;
    return 0;
  }

  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const { reject } of this.#unanswered) reject(lost());
    this.wire.close();
    this.#ended();
  }
}

/**
 * A connection to all servers of a client, made when it is first used. A line that fails is used
 * until its successor is ready: in a cluster the other nodes still reply, and a stopped server
 * reads the commands in the order in which they were sent.
 */
export class Lane implements Sender {
  readonly #opens: Opens;
  readonly #attemptMs: number;
  #line: Line | undefined;
  /** Successor of the line, which is connecting. */
  #next: Line | undefined;
  #opening: Promise<Line> | undefined;
  #watch: NodeJS.Timeout | undefined;

  constructor(opens: Opens, attemptMs: number) {
    this.#opens = opens;
    this.#attemptMs = attemptMs;
  }

  get wire(): Wire | undefined {
    return this.#line?.wire;
  }

  open(call: Call, ms: number): Promise<Line> {
    return within(unlessAborted(this.#open(), call.signal), ms, noReply, call.isBackground);
  }

  async send(key: string, words: Word[], call: Call, ms: number): Promise<unknown> {
    const until = now() + ms;
    const line = this.#line ?? (await this.open(call, ms));
    this.#watch ??= after(this.#attemptMs, this.#look, true);
    try {
      return await line.send(key, words, call, until - now());
    } catch (error) {
      if (!(error instanceof NoReply) && !call.signal?.aborted && pointsElsewhere(error))
        this.#replace(line);
      throw error;
    }
  }

  /** Closes the connection until it is used again. */
  close() {
    this.#next?.close();
    this.#line?.close();
  }

  /** Replaces a line on which nothing replies: a driver would use it until TCP gives up. */
  readonly #look = () => {
    // A process that was stopped reads the replies that it has received first.
    setImmediate(() => {
      this.#watch = undefined;
      const line = this.#line;
      if (!line || line.silentMs === 0) return;
      const leftMs = this.#attemptMs - line.silentMs;
      if (leftMs <= 0) this.#replace(line);
      this.#watch = after(leftMs > 0 ? leftMs : this.#attemptMs, this.#look, true);
    });
  };

  #replace(line: Line) {
    if (this.#line === line) this.#open().catch(ignore);
  }

  #open(): Promise<Line> {
    return (this.#opening ??= this.#connect().finally(() => (this.#opening = undefined)));
  }

  async #connect(): Promise<Line> {
    const line = new Line(this.#opens, this.#attemptMs, () => {
      if (this.#line === line) this.#line = undefined;
    });
    this.#next = line;
    await line.open().finally(() => (this.#next = undefined));
    const before = this.#line;
    this.#line = line;
    before?.close();
    return line;
  }
}
