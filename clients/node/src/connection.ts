/**
 * Connections that are duplicates of the program's client, and the commands on them without a
 * reply.
 */

import type { Word } from './options.js';
import { NoReply, replyCode } from './outages.js';
import { BACKGROUND, bounded, ignore, now, type Waits } from './time.js';

/** A connected duplicate of a client. It neither reconnects nor keeps commands for later. */
export interface Wire {
  /** Settles when the wire can take commands, or with the reason why it never will. */
  readonly ready: Promise<unknown>;
  send(key: string, words: Word[]): Promise<unknown>;
  subscribe(channel: string, heard: (message: string) => void): Promise<unknown>;
  /** Returns the node of a key in the cluster that the wire is connected to, if one is known. */
  node(key: string): Node | undefined;
  close(): void;
}

/** One server: that of the client or, in a cluster, the node of a key. */
export interface Node {
  /** Name of the server, for messages to people. */
  readonly name: string;
  /** Opens a wire within the time of an attempt, and calls `ended` when it has closed. */
  opens(attemptMs: number, ended: () => void): Wire;
}

/** The commands of one call of the program. */
export class Call implements Waits {
  /** Number of commands that got no reply in time, and may still arrive. */
  unanswered = 0;
  /** Time at which the latest command was sent. A lease counts from then or later. */
  sentAt = -Infinity;

  constructor(
    public token: string,
    readonly signal?: AbortSignal,
    readonly isBackground = false,
  ) {}

  /** Goes on with another token. */
  begin(token: string) {
    this.token = token;
    this.unanswered = 0;
  }
}

/** Replies after which another server may serve the command, so a new connection looks for it. */
const REPLIES_OF_ANOTHER_SERVER = ['READONLY', 'MASTERDOWN', 'CLUSTERDOWN'];

/** A connection. It closes when it fails, and when a command gets no reply for an attempt. */
export class Line {
  readonly wire: Wire;
  /** Settles when the line has closed. */
  readonly ended: Promise<void>;
  isClosed = false;
  readonly #attemptMs: number;
  readonly #opening: Promise<void>;
  #isReady = false;
  #end = ignore;

  constructor(node: Node, attemptMs: number) {
    this.#attemptMs = attemptMs;
    this.ended = new Promise((end) => (this.#end = end));
    this.wire = node.opens(attemptMs, () => this.close());
    this.#opening = this.#open();
    this.#opening.catch(ignore);
  }

  async #open() {
    try {
      await bounded(this.wire.ready, this.#attemptMs, BACKGROUND);
      this.#isReady = true;
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Sends a command about a key. Rejects if no reply comes in time, or if the call is aborted. */
  send(key: string, words: Word[], call: Call, ms: number): Promise<unknown> {
    return this.run((wire) => wire.send(key, words), call, ms);
  }

  async run(command: (wire: Wire) => Promise<unknown>, call: Call, ms: number): Promise<unknown> {
    const until = now() + ms;
    if (!this.#isReady) await bounded(this.#opening, ms, call);
    const sentAt = now();
    call.sentAt = sentAt;
    call.unanswered += 1;
    const sent = command(this.wire);
    try {
      const reply = await bounded(sent, until - sentAt, call);
      call.unanswered -= 1;
      return reply;
    } catch (error) {
      if (replyCode(error) !== undefined) call.unanswered -= 1;
      if (error instanceof NoReply || call.signal?.aborted) this.#closeIfSilent(sent, sentAt);
      else this.#closeIfFailed(error);
      throw error;
    }
  }

  /** Closes a connection on which nothing replies: a driver would use it until TCP gives up. */
  #closeIfSilent(sent: Promise<unknown>, sentAt: number) {
    bounded(sent, sentAt + this.#attemptMs - now(), BACKGROUND).catch((error) => {
      if (error instanceof NoReply) this.close();
    });
  }

  #closeIfFailed(error: unknown) {
    const code = replyCode(error);
    if (code === undefined || REPLIES_OF_ANOTHER_SERVER.includes(code)) this.close();
  }

  close() {
    if (this.isClosed) return;
    this.isClosed = true;
    this.wire.close();
    this.#end();
  }
}
