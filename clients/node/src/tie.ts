/** The connections that the grant of a session is tied to. */

import type { Call, Line, Sender } from './connection.js';
import { pointsElsewhere, replyCode } from './errors.js';
import type { Word } from './options.js';
import type { Node, Servers } from './servers.js';
import { now } from './time.js';

interface Earlier {
  readonly line: Line;
  /** Time after which no command of it can still arrive at the server. */
  readonly settledAt: number;
}

/**
 * Connections apart from the shared ones, of which the latest that works sends. The server ties a
 * session to the connection of the latest EXTEND, and releases the lock when that one closes. A
 * command without a reply may arrive late and move the tie back. So its connection stays open for a
 * lease, and until the server has moved the tie to another one.
 */
export class Tie implements Sender {
  readonly #servers: Servers;
  readonly #leaseMs: number;
  readonly #lost: () => void;
  #latest: Line | undefined;
  #earlier: Earlier[] = [];
  #isOver = false;

  /**
   * `lost` is called if the connection in use closes by itself. The lease is 0 for a waiter, which
   * the server ties to no connection.
   */
  constructor(servers: Servers, leaseMs: number, lost: () => void) {
    this.#servers = servers;
    this.#leaseMs = leaseMs;
    this.#lost = lost;
  }

  async send(key: string, words: Word[], call: Call, ms: number): Promise<unknown> {
    const until = now() + ms;
    const line = this.#latest ?? this.#open(await this.#servers.findNode(key, call, ms));
    try {
      return await line.send(key, words, call, until - now());
    } catch (error) {
      if (this.#latest === line && pointsElsewhere(error))
        this.#setAside(line, replyCode(error) === undefined);
      throw error;
    } finally {
      if (this.#isOver) this.close();
    }
  }

  #open(node: Node): Line {
    const line: Line = this.#servers.open(node, () => {
      if (this.#latest !== line) return;
      this.#latest = undefined;
      this.#lost();
    });
    return (this.#latest = line);
  }

  #setAside(line: Line, isUnclear: boolean) {
    this.#latest = undefined;
    if (this.#leaseMs === 0) return line.close();
    this.#earlier.push({ line, settledAt: now() + (isUnclear ? this.#leaseMs : 0) });
  }

  /** Closes the connections whose commands arrived before the one that moved the tie. */
  moved(askedAt: number) {
    const isSettled = ({ settledAt }: Earlier) => settledAt < askedAt;
    const settled = this.#earlier.filter(isSettled);
    this.#earlier = this.#earlier.filter((each) => !isSettled(each));
    for (const { line } of settled) line.close();
  }

  /** Closes the connections, because the grant has ended. */
  close() {
    this.#isOver = true;
    const lines = this.#earlier.map(({ line }) => line);
    if (this.#latest) lines.push(this.#latest);
    this.#earlier = [];
    this.#latest = undefined;
    for (const line of lines) line.close();
  }
}
