/** The same classes for `import Redlock from`, which would get all exports of a CommonJS module. */

export * from './redlock.js';
export { Redlock as default } from './redlock.js';
