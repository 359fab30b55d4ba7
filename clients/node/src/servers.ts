/** The servers of the program's client, and the connections to them that all locks share. */

import { type Call, Lane, Line, type Opens, type Wire } from './connection.js';
import { ConnectionFailure, UnavailableError } from './errors.js';

/** One server: that of the client or, in a cluster, the node of a key. */
export interface Node {
  readonly name: string;
  readonly opens: Opens;
}

/** Interface of the program's client. Each supported driver has a file that implements it. */
export interface Link {
  /** False once the client was closed for good. */
  readonly isOpen: boolean;
  readonly isCluster: boolean;
  /** Prefix that the client puts before every key. */
  readonly prefix: string;
  /** Name of the server or of the cluster, for messages to people. */
  readonly name: string;
  /** Opens a duplicate of the client. */
  readonly opens: Opens;
  /**
   * Returns the node of a key, or undefined if none is known: a cluster's are known by an open
   * wire.
   */
  node(wire: Wire | undefined, key: string): Node | undefined;
  /** Calls the listener each time the client is closed. */
  onClose(listener: () => void): void;
}

export const isClosed = () => new UnavailableError('the client is closed');

export class Servers {
  readonly link: Link;
  /** Connection for the commands of waiters. */
  readonly asks: Lane;
  /** Connection for all other commands. A release never waits behind the commands of waiters. */
  readonly holds: Lane;
  readonly attemptMs: number;
  /** Lines that are open apart from the lanes. */
  readonly #lines = new Set<Line>();

  constructor(link: Link, attemptMs: number) {
    this.link = link;
    this.attemptMs = attemptMs;
    this.asks = new Lane(this.#whileOpen(link.opens), attemptMs);
    this.holds = new Lane(this.#whileOpen(link.opens), attemptMs);
    link.onClose(() => this.#close());
  }

  /** Closes the connections if the client was closed. Some clients have no event for that. */
  check() {
    if (!this.link.isOpen) this.#close();
  }

  #close() {
    this.asks.close();
    this.holds.close();
    this.#lines.forEach((line) => line.close());
  }

  /** Returns the node of a key, or undefined if none is known. */
  node(key: string): Node | undefined {
    return this.link.node(this.asks.wire ?? this.holds.wire, key);
  }

  /** Returns the node of a key. Connects to the cluster before, if no node is known. */
  async findNode(key: string, call: Call, ms: number): Promise<Node> {
    if (!this.node(key)) await this.holds.open(call, ms);
    const node = this.node(key);
    if (!node) throw new ConnectionFailure('no node of the cluster serves the key');
    return node;
  }

  nameOf(key: string): string {
    return this.node(key)?.name ?? this.link.name;
  }

  /**
   * Opens a connection to a node, apart from those that all share. Calls `ended` when it has
   * closed.
   */
  open(node: Node, ended: () => void): Line {
    const line: Line = new Line(this.#whileOpen(node.opens), this.attemptMs, () => {
      this.#lines.delete(line);
      ended();
    });
    this.#lines.add(line);
    return line;
  }

  #whileOpen(opens: Opens): Opens {
    return (ended) => {
      if (!this.link.isOpen) throw isClosed();
      return opens(ended);
    };
  }
}
