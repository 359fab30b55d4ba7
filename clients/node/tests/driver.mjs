// The driver of the conformance suite. Reads orders in JSON from stdin, and writes answers to
// stdout, a line each. Its first argument is the client: ioredis or node-redis.

import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';

import { begin } from './clients.mjs';

const client = process.argv[2];
const { Locks, RedisLockError } = await import(`../dist/${client}.js`);

const named = new Map();
/** Keys and options of each name, for the guarded block, which makes its own lock. */
const specs = new Map();
const waits = new Map();
let locks;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const nameOf = (lock) =>
  [...named].find(([, each]) => each === lock)?.[0] ??
  [...specs].find(([, { keys }]) => String(keys) === String(lock.keys))?.[0];

const observer = {
  waited: (lock, ms, outcome) => say({ event: 'waited', lock: nameOf(lock), ms: Math.round(ms), outcome }),
  granted: (lock) => say({ event: 'granted', lock: nameOf(lock) }),
  unavailable: (error) => say({ event: 'unavailable', text: textOf(error) }),
};

const floats = { nan: NaN, inf: Infinity, '-inf': -Infinity };
/** Returns a value of an order: floats are named in JSON, and an option that isn't given is null. */
const value = (given) => floats[given] ?? given ?? undefined;
const textOf = (error) => `${error?.stack}\n${inspect(error, { depth: 5, showHidden: true })}`;

class CancelledByOrder extends Error {}

/** An argument that the library refuses has its own answer. */
async function checked(call) {
  try {
    return await call();
  } catch (error) {
    const refused = !(error instanceof RedisLockError) && (error instanceof TypeError || error instanceof RangeError);
    if (refused) throw Object.assign(error, { kind: 'argument' });
    throw error;
  }
}

const orders = {
  async connect({ servers, cluster, sentinel, username, password, command_timeout_ms }) {
    const user = { ...(username && { username }), ...(password && { password }) };
    const { client: connecting } = begin(client, servers, { cluster, sentinel, ...user });
    const commandTimeoutMs = value(command_timeout_ms);
    locks = await checked(() => new Locks(connecting, { observer, commandTimeoutMs }));
    return { ok: true };
  },
  async lock({ lock: name, keys, ...given }) {
    const options = {
      leaseMs: value(given.lease_ms),
      waitMs: value(given.wait_ms),
      token: value(given.token),
      shared: value(given.shared),
      limit: value(given.limit),
      permits: value(given.permits),
      session: value(given.session),
      keepMs: value(given.keep_ms),
      renew: value(given.renew),
      reentrant: value(given.reentrant),
      maxHoldMs: value(given.max_hold_ms),
      atLeastMs: value(given.at_least_ms),
      data: value(given.data),
      replicas: value(given.replicas),
    };
    options.onLost = () => say({ event: 'lost', lock: name });
    const lock = await checked(() => locks.lock(keys, options));
    named.set(name, lock);
    specs.set(name, { keys, options });
    return { ok: true, token: lock.token };
  },
  async acquire({ id, lock, wait_ms }) {
    const wait = new AbortController();
    waits.set(id, wait);
    const waitMs = value(wait_ms) ?? Infinity;
    const fence = await checked(() => named.get(lock).acquire({ waitMs, signal: wait.signal })).finally(() => waits.delete(id));
    return fence === undefined ? { ok: false } : { ok: true, fence };
  },
  async cancel({ of }) {
    waits.get(of)?.abort(new CancelledByOrder('cancelled by an order'));
    return { ok: true };
  },
  release: async ({ lock }) => ({ ok: await named.get(lock).release() }),
  extend: async ({ lock, lease_ms }) => ({ ok: await checked(() => named.get(lock).extend(value(lease_ms))) }),
  left: async ({ lock }) => ({ ok: true, ms: await named.get(lock).left() }),
  owned: async ({ lock }) => ({ ok: await named.get(lock).owned() }),
  release_all: async () => ({ ok: true, count: await locks.releaseAll() }),
  async block({ lock: name, wait_ms, work_ms, fail }) {
    const { keys, options } = specs.get(name);
    const fence = await locks.using(keys, { ...options, waitMs: value(wait_ms) ?? Infinity }, async (_signal, lock) => {
      named.set(name, lock);
      say({ event: 'in', lock: name });
      await sleep(work_ms);
      if (fail) throw new Error(fail);
      return lock.fence;
    });
    return { ok: true, fence };
  },
  async state({ lock: name }) {
    const { lost, fence = null, token } = named.get(name);
    return { ok: true, lost, fence, token };
  },
  async texts({ lock: name }) {
    const all = [named.get(name), locks];
    const text = all.flatMap((it) => [String(it), JSON.stringify(it), inspect(it, { depth: 9, showHidden: true })]).join('\n');
    return { ok: true, text };
  },
};

const kinds = {
  NOT_ACQUIRED: 'not_acquired',
  LOCK_LOST: 'lost',
  DEADLOCK: 'deadlock',
  UNAVAILABLE: 'unavailable',
  MODULE_MISSING: 'module_missing',
  NOT_REPLICATED: 'not_replicated',
  NOT_HELD: 'misuse',
};

function kind(error) {
  if (error instanceof RedisLockError) return kinds[error.code];
  if (error instanceof CancelledByOrder) return 'cancelled';
  if (error.kind) return error.kind;
  return /^(NOPERM|NOAUTH|WRONGPASS)/.test(error.message) ? 'denied' : 'other';
}

function failure(error, fail) {
  if (fail && error.message === fail) return { error: 'failed', text: fail };
  return { error: kind(error), text: textOf(error) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  orders[order.do](order)
    .catch((error) => failure(error, order.fail))
    .then((answer) => say({ id: order.id, ...answer }));
}
process.exit(0);
