/** Errors, and which errors of the server and the network are an outage. */

/** Base of the errors that the library throws on its own account. */
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

/** Error of a wait that LOCK.CANCEL ended. */
export class CancelledError extends RedisLockError {
  readonly code = 'CANCELLED';
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

/** Failure of a connection that the library itself noticed. */
export class ConnectionFailure extends Error {}

/** Error of a command that got no reply in time. */
export class NoReply extends ConnectionFailure {}

export const noReply = () => new NoReply('no reply in time');

/** First words of replies that a later attempt may not meet again. */
const PASSING_REPLIES: Record<string, string> = {
  LOADING: 'the server is loading its data',
  READONLY: 'the server is a read-only replica',
  MASTERDOWN: 'the server is a replica without its primary',
  CLUSTERDOWN: 'the cluster is down',
  TRYAGAIN: 'the cluster is moving the keys',
  MOVED: 'the cluster has moved the key',
  ASK: 'the cluster is moving the key',
  OOM: 'the server is out of memory',
  MISCONF: 'the server refuses writes, because it failed to save its data',
  BUSY: 'the server is busy with a script',
};
/** Replies after which another server may serve the command, so a new connection looks for it. */
const REPLIES_OF_ANOTHER_SERVER = ['READONLY', 'MASTERDOWN', 'CLUSTERDOWN', 'MOVED'];

const SYSTEM_ERRORS: Record<string, string> = {
  ECONNREFUSED: 'connection refused',
  ECONNRESET: 'connection reset',
  EPIPE: 'connection closed',
  ETIMEDOUT: 'connection timed out',
  EHOSTUNREACH: 'no route to the host',
  ENETUNREACH: 'no route to the network',
  ENOTFOUND: 'unknown host name',
  EAI_AGAIN: 'the host name cannot be resolved now',
  ENOENT: 'no such socket file',
};

/** Returns true if no server could serve a command, so that a later attempt may succeed. */
export const isOutage = (error: unknown): error is UnavailableError & { server: string } =>
  error instanceof UnavailableError && error.server !== undefined;

/** Errors of the program's or a driver's code, which no later attempt mends. */
const FAULTS = [TypeError, RangeError, ReferenceError, SyntaxError, RedisLockError];

/** Returns the code of a server's error reply, or undefined for an error of the client. */
export const replyCode = (error: unknown) =>
  error instanceof Error ? /^[A-Z]{2,}(?= )/.exec(error.message)?.[0] : undefined;

/** Returns the cause of an outage in words, or undefined if the failure is final. */
export function outageIn(error: unknown, server: string): string | undefined {
  if (!(error instanceof Error) || FAULTS.some((fault) => error instanceof fault)) return undefined;
  if (error instanceof ConnectionFailure) return error.message;
  const code = replyCode(error);
  if (code !== undefined) {
    if (/^ERR max number of clients/.test(error.message)) return 'the server has too many clients';
    if (/^UNBLOCKED .*instance state changed/.test(error.message))
      return 'the server became a replica';
    if (/^NOREPLICAS Not enough good replicas/.test(error.message))
      return 'the server has too few replicas to write';
    return PASSING_REPLIES[code];
  }
  const { code: systemCode = '' } = error as NodeJS.ErrnoException;
  return `${server}: ${SYSTEM_ERRORS[systemCode] ?? (error.message || systemCode || error.name)}`;
}

/** Returns true if the key holds a value that is no lock. */
export const isOfAnotherType = (error: unknown) => replyCode(error) === 'WRONGTYPE';

/** Returns true if a new connection may help more than another attempt on the same one. */
export function pointsElsewhere(error: unknown): boolean {
  const code = replyCode(error);
  return code === undefined || REPLIES_OF_ANOTHER_SERVER.includes(code);
}

const ERRORS_OF_REPLIES: Record<string, new (message: string, options: ErrorOptions) => Error> = {
  DEADLOCK: DeadlockError,
  NOREPLICAS: NotReplicatedError,
  UNBLOCKED: CancelledError,
};

/** Returns the error for the caller of a call that ends. */
export function finalError(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  if (/^ERR unknown command ['`]LOCK\./i.test(error.message)) {
    return new ModuleMissingError("this server hasn't loaded redis-lock");
  }
  const ErrorOfReply = ERRORS_OF_REPLIES[replyCode(error) ?? ''];
  return ErrorOfReply ? new ErrorOfReply(error.message, { cause: error }) : error;
}

/** Takes a token out of an error's texts, and out of the command that ioredis attaches. */
export function scrub(error: unknown, token: string) {
  if (!(error instanceof Error)) return;
  const hide = (text: string) => text.replaceAll(token, '<token>');
  if (error.message.includes(token)) error.message = hide(error.message);
  if (error.stack?.includes(token)) error.stack = hide(error.stack);
  const { command } = error as { command?: { args?: unknown[] } };
  if (command?.args) command.args = command.args.map((each) => hide(String(each)));
}
