import type { Lock } from './lock.js';

export interface LockOptions {
  /** How long the lock stays without being renewed. Default: 30000. */
  leaseMs?: number;
  /** The owner's name and his key to the lock. Default: 128 random bits in hex. */
  token?: string;
  /** Shared holders admit each other. */
  shared?: boolean;
  /** A semaphore: at most so many shared holders. */
  limit?: number;
  /** As how many of the limit this one counts. Default: 1. */
  permits?: number;
  /** Ties the lock to a connection of its own: the server frees it when that is closed. */
  session?: boolean;
  /** How long a place in the queue stays without a word from here. Default: 10000. */
  keepMs?: number;
  /** Whether to renew the lease at a third of it. Default: true. */
  renew?: boolean;
  /** Called once for each loss. */
  onLost?: (lock: Lock) => void;
}

export interface WaitOptions {
  /** How long to wait: 0 tries once, Infinity waits for ever. */
  waitMs?: number;
  /** Gives up waiting: the promise is rejected with its reason. */
  signal?: AbortSignal;
}

/** Others had the lock for all the time that there was. */
export class NotAcquired extends Error {
  override name = 'NotAcquired';
}

/** The lock ended before its release: the lease was over, or somebody deleted it. */
export class LockLost extends Error {
  override name = 'LockLost';
}

/** Waiting would never end: another holder waits for this one to leave. */
export class Deadlock extends Error {
  override name = 'Deadlock';
}
