// The driver of the conformance suite: see docs/internals/client-tests.md. Its first argument is the
// client: ioredis or node-redis.

import { AsyncLocalStorage } from 'node:async_hooks';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';

import { begin, push } from './clients.mjs';

const kind = process.argv[2];
const { Locks, NotAcquiredError, NotHeldError, RedisLockError, UnavailableError } = await import(
  `../dist/${kind}.js`
);

/** The locks by their names. */
const named = new Map();
/** The latest grant of each lock. */
const grants = new Map();
const waits = new Map();
let client;
let locks;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const nameOf = (lock) => [...named].find(([, each]) => each === lock)?.[0];
/** The name of the lock that an order acquires. */
const acquired = new AsyncLocalStorage();

const observer = {
  waited: (lock, ms, outcome) =>
    say({ event: 'waited', lock: nameOf(lock), ms: Math.round(ms), outcome }),
  granted: () => say({ event: 'granted', lock: acquired.getStore() }),
  unavailable: (error) => say({ event: 'unavailable', text: textOf(error) }),
};

const floats = { nan: NaN, inf: Infinity, '-inf': -Infinity };
/**
 * Returns a value of an order: floats are named in JSON, and an option that isn't given is null.
 */
const value = (given) => floats[given] ?? given ?? undefined;
const camel = (field) => field.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
const textOf = (error) => `${error?.stack}\n${inspect(error, { depth: 5, showHidden: true })}`;

class CancelledByOrder extends Error {}

/** An argument that the library refuses has its own reply. */
async function checked(call) {
  try {
    return await call();
  } catch (error) {
    const refused =
      !(error instanceof RedisLockError) &&
      (error instanceof TypeError || error instanceof RangeError);
    if (refused) throw Object.assign(error, { kind: 'argument' });
    throw error;
  }
}

function held(lock) {
  const grant = grants.get(lock);
  if (!grant) throw new NotHeldError('never acquired');
  return grant;
}

async function acquireFor({ id, lock, wait_ms }) {
  const wait = new AbortController();
  waits.set(id, wait);
  const options = { waitMs: value(wait_ms), signal: wait.signal };
  const grant = await checked(() => named.get(lock).acquire(options)).finally(() =>
    waits.delete(id),
  );
  if (grant) grants.set(lock, grant);
  return grant;
}

/** Runs the guarded block of an order. */
async function guard(order, work) {
  const { lock, wait_ms } = order;
  if (wait_ms === null) return named.get(lock).using(work);
  const grant = await acquireFor(order);
  if (!grant) throw new NotAcquiredError('not in time');
  return grant.using(work);
}

async function storm({ lock, tasks, seconds, most_wait_ms }) {
  const until = performance.now() + seconds * 1000;
  const releases = [];
  async function acquires() {
    while (performance.now() < until) {
      const waitMs = Math.random() * most_wait_ms;
      let grant;
      try {
        grant = await named.get(lock).acquire({ waitMs });
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
      }
      if (!grant) continue;
      await sleep(1);
      const releasesAt = performance.now();
      await grant.release();
      releases.push(performance.now() - releasesAt);
    }
  }
  await Promise.all(Array.from({ length: tasks }, acquires));
  releases.sort((a, b) => a - b);
  const p99 = releases[Math.floor(releases.length * 0.99)] ?? 0;
  return {
    ok: true,
    grants: releases.length,
    release_p99_ms: Math.round(p99),
  };
}

const orders = {
  async connect({ servers, cluster, sentinel, username, password, command_timeout_ms }) {
    const user = { ...(username && { username }), ...(password && { password }) };
    ({ client } = begin(kind, servers, { cluster, sentinel, ...user }));
    const commandTimeoutMs = value(command_timeout_ms);
    locks = await checked(() => new Locks(client, { observer, commandTimeoutMs }));
    return { ok: true };
  },
  async lock({ id, do: order, lock: name, keys, ...given }) {
    const options = { onLost: () => say({ event: 'lost', lock: name }) };
    for (const [field, it] of Object.entries(given)) options[camel(field)] = value(it);
    named.set(name, await checked(() => locks.lock(keys, options)));
    return { ok: true };
  },
  async acquire(order) {
    const grant = await acquireFor(order);
    return grant ? { ok: true, fence: grant.fence, token: grant.token } : { ok: false };
  },
  async cancel({ of }) {
    waits.get(of)?.abort(new CancelledByOrder('cancelled by an order'));
    return { ok: true };
  },
  release: async ({ lock }) => ({ ok: await held(lock).release() }),
  extend: async ({ lock, lease_ms }) => ({
    ok: await checked(() => held(lock).extend(value(lease_ms))),
  }),
  left: async ({ lock }) => ({ ok: true, ms: Math.ceil(grants.get(lock)?.left() ?? 0) }),
  owned: async ({ lock }) => ({ ok: (await grants.get(lock)?.owned()) ?? false }),
  release_all: async () => ({ ok: true, count: await locks.releaseAll() }),
  block: async (order) =>
    guard(order, async (grant) => {
      grants.set(order.lock, grant);
      say({ event: 'in', lock: order.lock });
      await sleep(order.work_ms);
      if (order.fail) throw new Error(order.fail);
      return { ok: true, fence: grant.fence };
    }),
  /** Writes the fence to a list until the loss of the lock ends the block. */
  write: async (order) =>
    guard(order, async (grant, signal) => {
      for (;;) {
        signal.throwIfAborted();
        await push(client, order.list, String(grant.fence));
        await sleep(2, undefined, { signal });
      }
    }),
  storm,
  async state({ lock }) {
    const { lost = false, fence = null, token = null } = grants.get(lock) ?? {};
    return { ok: true, lost, fence, token };
  },
  async texts({ lock: name }) {
    const all = [named.get(name), locks, grants.get(name)];
    const text = all
      .flatMap((it) => [
        String(it),
        JSON.stringify(it),
        inspect(it, { depth: 9, showHidden: true }),
      ])
      .join('\n');
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

function kindOf(error) {
  if (error instanceof RedisLockError) return kinds[error.code];
  if (error instanceof CancelledByOrder) return 'cancelled';
  if (error.kind) return error.kind;
  return /^(NOPERM|NOAUTH|WRONGPASS)/.test(error.message) ? 'denied' : 'other';
}

function failure(error, fail) {
  if (fail && error.message === fail) return { error: 'failed', text: fail };
  return { error: kindOf(error), text: textOf(error) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  acquired
    .run(order.lock, orders[order.do], order)
    .catch((error) => failure(error, order.fail))
    .then((reply) => say({ id: order.id, ...reply }));
}
process.exit(0);
