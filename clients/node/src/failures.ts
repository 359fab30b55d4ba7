// Failures of commands: an outage is worth another attempt, every other failure is final.

import { DeadlockError, ModuleMissingError, NotReplicatedError, RedisLockError } from './errors.js';

/** Failure of the connection, found by the library itself. Its message is the cause in words. */
export class ConnectionFailure extends Error {
  override readonly name = 'ConnectionFailure';
}

/** Failures of commands that were never written. */
const unsent = new WeakSet<object>();

/** Marks the failure of a command that was never written. */
export function markUnsent(error: unknown) {
  if (error instanceof Error) unsent.add(error);
}

/** Returns true if the failed command was written and has no reply, so that it may have had its effect. */
export const mayBeDone = (error: unknown) =>
  error instanceof Error && !unsent.has(error) && replyCode(error) === undefined && outageIn(error, '') !== undefined;

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

/** Returns the code of a server's error reply, or undefined for an error of the client. */
const replyCode = (error: Error) => /^[A-Z]{2,}(?= )/.exec(error.message)?.[0];

/** Returns the cause of an outage in words, or undefined if the failure is final. */
export function outageIn(error: unknown, address: string): string | undefined {
  if (!(error instanceof Error) || error instanceof TypeError || error instanceof RedisLockError) return undefined;
  if (error instanceof ConnectionFailure) return error.message;
  const code = replyCode(error);
  if (code !== undefined) {
    if (/^ERR max number of clients/.test(error.message)) return 'the server has too many clients';
    if (/^UNBLOCKED .*instance state changed/.test(error.message)) return 'the server became a replica';
    return PASSING_REPLIES[code];
  }
  const { code: systemCode = '' } = error as NodeJS.ErrnoException;
  return `${address}: ${SYSTEM_ERRORS[systemCode] ?? (error.message || systemCode || error.name)}`;
}

/** Returns true if the key holds a value that is no lock. */
export const isOfAnotherType = (error: unknown) => error instanceof Error && replyCode(error) === 'WRONGTYPE';

/** Returns true if a new connection may help more than another attempt on the same one. */
export function pointsElsewhere(error: Error): boolean {
  const code = replyCode(error);
  return code === undefined || REPLIES_OF_ANOTHER_SERVER.includes(code);
}

/** Returns the error that a caller sees for a final failure. */
export function finalError(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  if (/^ERR unknown command/i.test(error.message)) return new ModuleMissingError("this server hasn't loaded redis-lock");
  switch (replyCode(error)) {
    case 'DEADLOCK':
      return new DeadlockError(error.message, { cause: error });
    case 'NOREPLICAS':
      return new NotReplicatedError(error.message, { cause: error });
    default:
      return error;
  }
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
