/** The servers of the program's client, and the connections to them that all locks share. */

import { Line, type Node } from './connection.js';
import { UnavailableError } from './errors.js';
import { Messages } from './messages.js';
import { timeMs } from './options.js';

/** Interface of the program's client. Each supported driver has a file that implements it. */
export interface Link extends Node {
  /** False once the client was closed for good. */
  readonly isOpen: boolean;
  readonly isCluster: boolean;
  /** True if another server may take over, so that the library soon looks for it. */
  readonly failsOver: boolean;
  /** Prefix that the client puts before every key. */
  readonly prefix: string;
}

const TIMEOUT_MS = 1000;
/** Longest time of one attempt of several: there is time for another one. */
const ATTEMPT_MS = 1000;
/** Time between two looks whether the client was closed. Some clients have no event for that. */
const CLOSE_CHECK_MS = 250;

export const isClosed = () => new UnavailableError('the client is closed');

export class Servers {
  readonly link: Link;
  readonly messages = new Messages(this);
  /** Longest time of each call that doesn't wait for a lock. */
  readonly timeoutMs: number;
  readonly attemptMs: number;
  readonly #lines = new Set<Line>();
  #watch: NodeJS.Timeout | undefined;
  #asks: Line | undefined;
  #holds: Line | undefined;

  constructor(link: Link, commandTimeoutMs: number = TIMEOUT_MS) {
    this.link = link;
    this.timeoutMs = timeMs('commandTimeoutMs', commandTimeoutMs);
    const attemptMs = Math.max(Math.min(this.timeoutMs, ATTEMPT_MS), this.timeoutMs / 3);
    this.attemptMs = link.failsOver ? Math.min(attemptMs, ATTEMPT_MS) : attemptMs;
  }

  /** Connection for the commands of waiters. */
  get asks(): Line {
    return (this.#asks = this.#openAgain(this.#asks));
  }

  /** Connection for all other commands. A release never waits behind the commands of waiters. */
  get holds(): Line {
    return (this.#holds = this.#openAgain(this.#holds));
  }

  #openAgain(line: Line | undefined): Line {
    return line && !line.isClosed ? line : this.open(this.link);
  }

  /** Opens a connection to a server, apart from those that all share. */
  open(node: Node): Line {
    if (!this.link.isOpen) throw isClosed();
    const line = new Line(node, this.attemptMs);
    this.#lines.add(line);
    line.ended.then(() => this.#lines.delete(line));
    this.#watch ??= setInterval(this.#look, CLOSE_CHECK_MS).unref();
    return line;
  }

  /** Opens a connection to the server of a key, which another connection knows. */
  openTo(key: string, known: Line): Line {
    const node = this.node(key, known);
    if (!node) throw new Error('no node of the cluster serves the key');
    return this.open(node);
  }

  /** Closes the connections after the client was closed. */
  readonly #look = () => {
    if (this.link.isOpen) return;
    clearInterval(this.#watch);
    this.#watch = undefined;
    this.#lines.forEach((line) => line.close());
  };

  /** Returns the server of a key, or undefined if a cluster's is not known to the connection. */
  node(key: string, line = this.#asks ?? this.#holds): Node | undefined {
    return this.link.isCluster ? line?.wire.node(key) : this.link;
  }

  nameOf(key: string): string {
    return (this.node(key) ?? this.link).name;
  }
}
