/** Hooks of the program. */

/** Prints a warning in the way of Node.js. */
export const warn = (error: unknown) =>
  process.emitWarning(error instanceof Error ? error.message : String(error), 'RedisLockWarning');

/** Calls a hook. Its failure must not harm a lock. */
export function tell(hook: () => unknown) {
  try {
    const result = hook();
    // An async hook fails with its promise.
    if (result instanceof Promise) result.catch(warn);
  } catch (error) {
    warn(error);
  }
}
