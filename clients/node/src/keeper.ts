/** The grants that are held, and when each of them needs attention. */

import { after, now } from './time.js';

/** A grant that is looked after. */
interface Held {
  readonly state: string;
  /** Time at which something is due. */
  readonly due: number;
  /** Does what is due. Returns the next time to look. */
  lookAfter(time: number): number;
}

/** A timer that renews grants, and notices their ends. It doesn't keep the process alive. */
export class Keeper<T extends Held> {
  readonly held = new Set<T>();
  #timer: NodeJS.Timeout | undefined;
  #looksAt = Infinity;

  hold(hold: T) {
    // perf: Most locks are released long before anything is due, so the keeper doesn't look for a
    // grant that is due after its next look.
    if (hold.state !== 'held') return;
    this.held.add(hold);
    if (hold.due < this.#looksAt) this.#look();
  }

  /** Does what is due, and looks again when the next thing is due. */
  readonly #look = () => {
    clearTimeout(this.#timer);
    const began = now();
    // Until all are seen, a new grant lets the keeper look again.
    this.#looksAt = Infinity;
    let next = Infinity;
    for (const hold of this.held) next = Math.min(next, hold.lookAfter(began));
    this.#looksAt = next;
    if (next < Infinity) this.#timer = after(next - now(), this.#look, true);
  };
}
