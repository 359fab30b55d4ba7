/** Errors that the library throws on its own account. */

/** Base of these errors. */
export abstract class RedisLockError extends Error {
  abstract readonly code: string;
  override readonly name = this.constructor.name;
}

/** Error of a guarded block whose lock another client had until the time limit was over. */
export class NotAcquiredError extends RedisLockError {
  readonly code = 'NOT_ACQUIRED';
}

/** Error of a lock that was lost before its release. */
export class LockLostError extends RedisLockError {
  readonly code = 'LOCK_LOST';
}

/** Error of a release of a grant that was released before. */
export class NotHeldError extends RedisLockError {
  readonly code = 'NOT_HELD';
}

/** Error of a wait that would never end, because another holder waits for this holder's release. */
export class DeadlockError extends RedisLockError {
  readonly code = 'DEADLOCK';
}

/** Error of a call that no server served in time. Its `cause` is the latest failure. */
export class UnavailableError extends RedisLockError {
  readonly code = 'UNAVAILABLE';
  /** Server that failed, or none if the client was closed. */
  server?: string;
}

/** Error of a server without the module. */
export class ModuleMissingError extends RedisLockError {
  readonly code = 'MODULE_MISSING';
}

/** Error of a lock that too few replicas acknowledged. The server has released it again. */
export class NotReplicatedError extends RedisLockError {
  readonly code = 'NOT_REPLICATED';
}
