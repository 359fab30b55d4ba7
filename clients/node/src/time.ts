export const now = () => performance.now();
export const ignore = () => {};

/** Longest timer of Node.js. A longer time ends early, so each user of a timer looks at the clock. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
export const after = (ms: number, work: () => void) =>
  setTimeout(work, Math.min(Math.max(Math.ceil(ms), 0), LONGEST_TIMER_MS));

/** Settles like `work`, or rejects with the signal's reason if the signal is aborted first. */
export function unlessAborted<T>(work: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (!signal) return work;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

/** A pause that ends early when it is rung. */
export class Bell {
  #rung = false;
  #wake = ignore;
  readonly ring = () => {
    this.#rung = true;
    this.#wake();
  };

  /** Waits for a ring, or for the time. An aborted signal counts as a ring. */
  async wait(ms: number, signal?: AbortSignal) {
    if (!this.#rung && !signal?.aborted) {
      signal?.addEventListener('abort', this.ring);
      await new Promise<void>((resolve) => {
        const timer = after(ms, resolve);
        this.#wake = () => resolve(clearTimeout(timer));
      });
      signal?.removeEventListener('abort', this.ring);
    }
    this.#rung = false;
  }
}

/** Returns true if `work` is fulfilled by `until`. */
export async function doneBy(work: Promise<unknown>, until: number): Promise<boolean> {
  const bell = new Bell();
  let isDone = false;
  void work.then(() => {
    isDone = true;
    bell.ring();
  });
  while (!isDone && now() < until) await bell.wait(until - now());
  return isDone;
}

/** A pause that doesn't keep the process alive. */
export const backgroundPause = (ms: number) => new Promise<void>((resolve) => void after(ms, resolve).unref());

/** Calls that begin in one turn of the event loop. */
const BURST = 32;

/**
 * A gate that lets the event loop read replies between many calls that begin at once. perf: else
 * the first of 500 tasks would have its lock only after all had asked for theirs.
 */
export class Pace {
  #left = BURST;
  #isScheduled = false;
  readonly #line: (() => void)[] = [];

  /** Returns undefined if the call may begin at once. */
  enter(): Promise<void> | undefined {
    if (!this.#isScheduled) this.#schedule();
    if (this.#left === 0) return new Promise((resolve) => this.#line.push(resolve));
    this.#left -= 1;
    return undefined;
  }

  #schedule() {
    this.#isScheduled = true;
    setImmediate(() => {
      const begin = this.#line.splice(0, BURST);
      this.#left = BURST - begin.length;
      this.#isScheduled = false;
      if (begin.length > 0) this.#schedule();
      begin.forEach((enter) => enter());
    });
  }
}
