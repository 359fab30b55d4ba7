export const now = () => performance.now();
export const ignore = () => {};
export const never = (): AbortSignal => new AbortController().signal;

/** Timers of Node.js can't be longer. */
const LONGEST_MS = 2 ** 31 - 1;
const timerMs = (ms: number) => Math.min(Math.max(Math.ceil(ms), 0), LONGEST_MS);

/** A signal that is aborted after a time. */
export const within = (ms: number): AbortSignal => (ms > LONGEST_MS ? never() : AbortSignal.timeout(timerMs(ms)));

/** What the work gives, or the reason of the signal if that is aborted before. */
export function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

/** A pause that ends early when it is rung. No timer here keeps a process alive: the client's connection does. */
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
