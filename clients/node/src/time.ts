/** The clock, and waits that end in time. */

import { NoReply } from './outages.js';

export const now = () => performance.now();
export const ignore = () => {};

/**
 * Longest timer of Node.js. A longer time ends early, so each user of a timer looks at the clock.
 */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Runs work later. `isBackground` is true if the process may end before. */
export function after(ms: number, work: () => void, isBackground = false): NodeJS.Timeout {
  const timer = setTimeout(work, Math.min(Math.max(Math.ceil(ms), 0), LONGEST_TIMER_MS));
  return isBackground ? timer.unref() : timer;
}

/** Work that a call of the program waits for. */
export interface Waits {
  /** Signal that ends the wait. */
  readonly signal?: AbortSignal | undefined;
  /** True if the process may end before the call. */
  readonly isBackground?: boolean;
}

/** Bounds for work that no call waits for. */
export const BACKGROUND: Waits = { isBackground: true };

/**
 * Settles like `work`. Rejects with a NoReply if the time is over before, and with the signal's
 * reason if the signal is aborted.
 */
export function bounded<T>(work: Promise<T>, ms: number, waits: Waits): Promise<T> {
  const { signal, isBackground } = waits;
  return new Promise((resolve, reject) => {
    const stop = () => fail(signal!.reason);
    // A process that was stopped reads the replies that it has received before the clock decides.
    const late = () => setImmediate(() => fail(new NoReply()));
    const timer = ms > LONGEST_TIMER_MS ? undefined : after(ms, late, isBackground);
    function settled() {
      clearTimeout(timer);
      signal?.removeEventListener('abort', stop);
    }
    function fail(reason: unknown) {
      settled();
      reject(reason);
    }
    signal?.addEventListener('abort', stop);
    if (signal?.aborted) stop();
    work.then((result) => {
      settled();
      resolve(result);
    }, fail);
  });
}

/** A pause that ends early when it is rung. A ring before the pause counts, too. */
export class Bell {
  #isRung = false;
  #wake = ignore;
  readonly ring = () => {
    this.#isRung = true;
    this.#wake();
  };

  /** Returns true if it was rung before the time was over. */
  async wait(ms: number, waits: Waits): Promise<boolean> {
    const rung = new Promise<boolean>((wake) => {
      this.#wake = () => wake(true);
      if (this.#isRung) this.#wake();
    });
    const isRung = await bounded(rung, ms, waits).catch((error) => {
      if (error instanceof NoReply) return false;
      throw error;
    });
    this.#isRung = false;
    return isRung;
  }
}
