// The driver of the conformance suite. Reads orders in JSON from stdin, and writes answers to
// stdout, a line each. Its first argument is the client: ioredis or node-redis.

import { createInterface } from 'node:readline';

import { connect } from './clients.mjs';

const client = process.argv[2];
const { Deadlock, LockLost, Locks } = await import(`../dist/${client}.js`);

const named = new Map();
const waits = new Map();
let locks;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const orders = {
  async connect({ servers, cluster }) {
    locks = new Locks(await connect(client, servers, cluster));
    return { ok: true };
  },
  async lock({ lock: name, keys, lease_ms, renew, shared, limit, permits, session, keep_ms, token }) {
    const lock = locks.lock(keys, {
      leaseMs: lease_ms,
      keepMs: keep_ms ?? undefined,
      token: token ?? undefined,
      limit: limit ?? undefined,
      permits: permits ?? undefined,
      renew,
      shared,
      session,
      onLost: () => say({ event: 'lost', lock: name }),
    });
    named.set(name, lock);
    return { ok: true, token: lock.token };
  },
  async acquire({ id, lock, wait_ms }) {
    const wait = new AbortController();
    waits.set(id, wait);
    const waitMs = wait_ms ?? Infinity;
    const fence = await named.get(lock).acquire({ waitMs, signal: wait.signal }).finally(() => waits.delete(id));
    return fence === undefined ? { ok: false } : { ok: true, fence };
  },
  async cancel({ of }) {
    waits.get(of)?.abort(new Error('cancelled by an order'));
    return { ok: true };
  },
  release: async ({ lock }) => ({ ok: await named.get(lock).release() }),
  extend: async ({ lock, lease_ms }) => ({ ok: await named.get(lock).extend(lease_ms) }),
  left: async ({ lock }) => ({ ok: true, ms: await named.get(lock).left() }),
  async state({ lock: name }) {
    const { lost, fence = null, token } = named.get(name);
    return { ok: true, lost, fence, token };
  },
};

function kind(error) {
  if (error instanceof Deadlock) return 'deadlock';
  if (error instanceof LockLost) return 'lost';
  return error.message === 'cancelled by an order' ? 'cancelled' : 'other';
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  orders[order.do](order)
    .catch((error) => ({ error: kind(error), text: String(error.stack) }))
    .then((answer) => say({ id: order.id, ...answer }));
}
process.exit(0);
