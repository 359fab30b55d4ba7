/** The errors and types that both entries share. The entries add their `Locks`. */

export * from './errors.js';
export type { Lock, LockState } from './lock.js';
export type { LocksOptions, Observer } from './locks.js';
export type { AcquireOptions, LockOptions } from './options.js';
