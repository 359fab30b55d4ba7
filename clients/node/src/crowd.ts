/**
 * The acquires of one process that wait for the same keys: only the first of them ask the server.
 * perf: the commands of acquires that give up would take the processor from the one whose turn it
 * is.
 */

import { Bell, now, type Waits } from './time.js';

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
  async enter(until: number, waits: Waits): Promise<boolean> {
    if (this.#free > 0) {
      this.#free -= 1;
      return true;
    }
    const turn = new Bell();
    this.#waiting.add(turn);
    let isIn = false;
    try {
      isIn = await turn.wait(until - now(), waits);
    } finally {
      // A turn that came too late goes to the next.
      if (!this.#waiting.delete(turn) && !isIn) this.leave();
    }
    return isIn;
  }

  /** Lets the next acquire ask. */
  leave() {
    const [next] = this.#waiting;
    if (next) {
      this.#waiting.delete(next);
      next.ring();
      return;
    }
    this.#free += 1;
    if (this.#free === MOST_ASKING) this.#emptied();
  }
}

/** Returns the crowd of a key. It is forgotten when no acquire has it. */
export function crowdOf(crowds: Map<string, Crowd>, name: string): Crowd {
  const crowd = crowds.get(name) ?? new Crowd(() => crowds.delete(name));
  crowds.set(name, crowd);
  return crowd;
}
