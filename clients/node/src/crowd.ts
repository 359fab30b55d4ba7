/**
 * The acquires of one process that wait for the same keys: only the first of them ask the server.
 * perf: the commands of acquires that give up would take the processor from the one whose turn it
 * is.
 */

import { Bell, now } from './time.js';

/** Most acquires of a process that wait for the same keys at the server. */
const MOST_ASKING = 4;

export class Crowd {
  /** Time at which the server last replied to one of the acquires, if none failed since. */
  repliedAt = -Infinity;
  #free = MOST_ASKING;
  readonly #waiting = new Set<Bell>();
  readonly #emptied: () => void;

  /** `emptied` is called when no acquire asks or waits. */
  constructor(emptied: () => void) {
    this.#emptied = emptied;
  }

  /** Waits, in order, until few ask the server. Returns false if the time is over first. */
  async enter(until: number, signal: AbortSignal | undefined): Promise<boolean> {
    if (this.#free > 0) {
      this.#free -= 1;
      return true;
    }
    const turn = new Bell();
    this.#waiting.add(turn);
    // A turn that came is removed by the one that gave it.
    while (this.#waiting.has(turn) && !signal?.aborted && now() < until)
      await turn.wait(until - now(), signal);
    const isIn = !this.#waiting.delete(turn);
    if (isIn && signal?.aborted) this.leave();
    signal?.throwIfAborted();
    return isIn;
  }

  /** Lets the next acquire ask. */
  leave() {
    const [next] = this.#waiting;
    if (!next) {
      this.#free += 1;
      if (this.#free === MOST_ASKING) this.#emptied();
      return;
    }
    this.#waiting.delete(next);
    next.ring();
  }
}

/** The crowds of all keys. One is forgotten when no acquire has it. */
export class Crowds {
  readonly #crowds = new Map<string, Crowd>();

  of(name: string): Crowd {
    const known = this.#crowds.get(name);
    if (known) return known;
    const crowd = new Crowd(() => this.#crowds.delete(name));
    this.#crowds.set(name, crowd);
    return crowd;
  }
}
