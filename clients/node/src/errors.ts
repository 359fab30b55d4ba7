/** Base of the errors that the library throws on its own account. */
export abstract class RedisLockError extends Error {
  abstract readonly code: string;
}

/** Error of a lock that another owner had until the time limit was over. */
export class NotAcquiredError extends RedisLockError {
  override readonly name = 'NotAcquiredError';
  readonly code = 'NOT_ACQUIRED';
}

/** Error of a lock that ended before its release: the lease ended, or the key was deleted. */
export class LockLostError extends RedisLockError {
  override readonly name = 'LockLostError';
  readonly code = 'LOCK_LOST';
}

/** Error of a release without an acquire. */
export class NotHeldError extends RedisLockError {
  override readonly name = 'NotHeldError';
  readonly code = 'NOT_HELD';
}

/** Error of a wait that would never end, because another holder waits for this holder's release. */
export class DeadlockError extends RedisLockError {
  override readonly name = 'DeadlockError';
  readonly code = 'DEADLOCK';
}

/** Error of a call that the server didn't serve in time. Its `cause` is the latest failure. */
export class UnavailableError extends RedisLockError {
  override readonly name = 'UnavailableError';
  readonly code = 'UNAVAILABLE';
}

/** Error of a server without the module. */
export class ModuleMissingError extends RedisLockError {
  override readonly name = 'ModuleMissingError';
  readonly code = 'MODULE_MISSING';
}

/** Error of a lock that too few replicas acknowledged. The library has released it again. */
export class NotReplicatedError extends RedisLockError {
  override readonly name = 'NotReplicatedError';
  readonly code = 'NOT_REPLICATED';
}
