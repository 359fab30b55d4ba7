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

/** A pause that ends early when it is rung. */
export class Bell {
  #isRung = false;
  #wake = ignore;
  readonly ring = () => {
    this.#isRung = true;
    this.#wake();
  };

  /**
   * Waits for a ring, or for the time. Returns true if it was rung. An aborted signal counts as a
   * ring.
   */
  async wait(ms: number, signal?: AbortSignal, isBackground = false): Promise<boolean> {
    if (!this.#isRung && !signal?.aborted) {
      signal?.addEventListener('abort', this.ring);
      await new Promise<void>((resolve) => {
        const timer = after(ms, resolve, isBackground);
        this.#wake = () => resolve(clearTimeout(timer));
      });
      signal?.removeEventListener('abort', this.ring);
    }
    const isRung = this.#isRung;
    this.#isRung = false;
    return isRung;
  }
}

/** Settles like `work`, or rejects with the signal's reason if the signal is aborted first. */
export function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

/** Settles like `work`, or rejects with the error of `late` after the time. */
export function within<T>(
  work: Promise<T>,
  ms: number,
  late: () => Error,
  isBackground = false,
): Promise<T> {
  return new Promise((resolve, reject) => {
    // A process that was stopped reads the replies that it has received before the clock decides.
    const timer = after(ms, () => setImmediate(() => reject(late())), isBackground);
    const settled = () => clearTimeout(timer);
    work.then(resolve, reject).then(settled);
  });
}
