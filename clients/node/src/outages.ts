/** Outages: which errors of the server and the network a later attempt may not meet again. */

import {
  DeadlockError,
  ModuleMissingError,
  NotReplicatedError,
  RedisLockError,
  UnavailableError,
} from './errors.js';

/** Error of a command that got no reply in time. */
export class NoReply extends Error {
  override readonly message = 'no reply in time';
}

/** Replies that a later attempt may not meet again. */
const PASSING_REPLIES = [
  /^(LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|OOM|MISCONF|BUSY) /,
  /^ERR max number of clients/,
  /^UNBLOCKED .*(instance state changed|took over this place)/,
  /^NOREPLICAS Not enough good replicas/,
];

/** Errors of the program's or a driver's code, which no later attempt mends. */
const FAULTS = [TypeError, RangeError, ReferenceError, SyntaxError, RedisLockError];

/** Returns the code of a server's error reply, or undefined for an error of the client. */
export const replyCode = (error: unknown) =>
  error instanceof Error ? /^[A-Z]{2,}(?= )/.exec(error.message)?.[0] : undefined;

/** Returns true for a failure of the connection, and for a temporary error of the server. */
export function isPassing(error: unknown): error is Error {
  if (!(error instanceof Error) || FAULTS.some((fault) => error instanceof fault)) return false;
  return (
    replyCode(error) === undefined || PASSING_REPLIES.some((reply) => reply.test(error.message))
  );
}

/** Returns true if no server could serve a command, so that a later attempt may succeed. */
export const isOutage = (error: unknown): error is UnavailableError & { server: string } =>
  error instanceof UnavailableError && error.server !== undefined;

/** Returns the error of a call to a server that could not serve it. */
export function outageOf(error: Error, server: string): UnavailableError {
  const text = error.message || (error as NodeJS.ErrnoException).code || error.name;
  return Object.assign(new UnavailableError(`${server}: ${text}`, { cause: error }), { server });
}

/** Returns true if the key holds a value that is no lock. */
export const isOfAnotherType = (error: unknown) => replyCode(error) === 'WRONGTYPE';

/** Returns the error for the caller of a call that ends. */
export function finalError(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  if (/^ERR unknown command ['`]LOCK\./i.test(error.message))
    return new ModuleMissingError("this server hasn't loaded redis-lock");
  const code = replyCode(error);
  if (code === 'DEADLOCK') return new DeadlockError(error.message, { cause: error });
  if (code === 'NOREPLICAS') return new NotReplicatedError(error.message, { cause: error });
  return error;
}

/** Takes a token out of an error's texts, and out of the command that ioredis attaches. */
export function scrub(error: unknown, token: string) {
  if (!(error instanceof Error) || token === '') return;
  const hide = (text: string) => text.replaceAll(token, '<token>');
  error.message = hide(error.message);
  error.stack = hide(error.stack ?? '');
  const { command } = error as { command?: { args?: unknown[] } };
  if (command?.args) command.args = command.args.map((each) => hide(String(each)));
}
