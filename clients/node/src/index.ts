/** What both entries share: the errors, and the types. The entries add their `Locks`. */

export * from './errors.js';
export type { Lock, LockState } from './lock.js';
export type { LocksOptions, Observer } from './locks.js';
export type { AcquireOptions, LockOptions } from './options.js';
