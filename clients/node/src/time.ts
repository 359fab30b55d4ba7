export const now = () => performance.now();
export const ignore = () => {};
export const never = (): AbortSignal => new AbortController().signal;

/** Longest timer of Node.js. */
const LONGEST_MS = 2 ** 31 - 1;
const timerMs = (ms: number) => Math.min(Math.max(Math.ceil(ms), 0), LONGEST_MS);

/** Returns a signal that is aborted after a time. */
export const within = (ms: number): AbortSignal => (ms > LONGEST_MS ? never() : AbortSignal.timeout(timerMs(ms)));

/** Settles like `work`, or rejects with the signal's reason if the signal is aborted first. */
export function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

/**
 * A pause that ends early when it is rung. Its timer doesn't keep the process alive; the client's
 * connection does.
 */
export class Bell {
  #rung = false;
  #wake = ignore;
  readonly ring = () => {
    this.#rung = true;
    this.#wake();
  };

  async wait(ms: number) {
    if (!this.#rung) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, timerMs(ms)).unref();
        this.#wake = () => resolve(clearTimeout(timer));
      });
    }
    this.#rung = false;
  }
}
