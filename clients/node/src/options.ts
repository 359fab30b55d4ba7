export interface WaitOptions {
  /** Time limit of the wait: 0 tries once, Infinity sets no limit. */
  waitMs?: number;
  /** Signal that cancels the wait: the promise is rejected with its reason. */
  signal?: AbortSignal;
}

/** Error of a lock that was not granted in time. */
export class NotAcquired extends Error {
  override name = 'NotAcquired';
}

/** Error of a lock that ended before its release: the lease ended, or the key was deleted. */
export class LockLost extends Error {
  override name = 'LockLost';
}

/** Error of a wait that would never end, because another holder waits for this holder's release. */
export class Deadlock extends Error {
  override name = 'Deadlock';
}
