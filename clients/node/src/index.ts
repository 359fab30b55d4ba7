/** The errors and types that both entries share. The entries add their `Locks`. */

export * from './errors.js';
export type { Grant, Work } from './grant.js';
export type { Lock, LockOptions, LocksOptions, Observer, Outcome } from './locks.js';
export type { AcquireOptions } from './options.js';
