// Replies that are late, lost or refused, between a client and a healthy server.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Cluster, Redis } from 'ioredis';

import { LockLostError, Locks, UnavailableError } from '../dist/ioredis.js';
import { startProxy } from './proxy.mjs';
import { info, startCluster, startServer, until } from './server.mjs';

const LOADING = '-LOADING the server is loading\r\n';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

/** Defines a test with a client behind a proxy. */
function check(what, work, commandTimeoutMs = 20_000) {
  test(what, { timeout: 60_000 }, async () => {
    await server.redis.flushall();
    const proxy = await startProxy(server);
    const client = new Redis(proxy.port, '127.0.0.1');
    client.on('error', () => {});
    try {
      await work(new Locks(client, { commandTimeoutMs, observer: { unavailable() {} } }), proxy);
    } finally {
      client.disconnect();
      await proxy.stop();
    }
  });
}

check('a renewal behind an extend keeps the new lease', async (locks, proxy) => {
  const lock = await locks.acquire('k', { leaseMs: 3000 });
  proxy.heldReplies = [];
  const extended = lock.extend(600_000);
  await until('a renewal follows', () => proxy.count('LOCK.EXTEND') === 2);
  proxy.deliver();
  assert.equal(await extended, true);
  assert((await lock.left()) > 500_000);
  assert(lock.leaseLeftMs > 500_000);
  assert.equal(await lock.release(), true);
});

check('a further hold behind an extend keeps the new lease', async (locks, proxy) => {
  const lock = locks.lock('k', { leaseMs: 5000, renew: false, reentrant: true });
  await lock.acquire();
  proxy.heldReplies = [];
  const extended = lock.extend(600_000);
  const again = lock.acquire();
  await until('the acquire follows', () => proxy.count('LOCK.ACQUIRE') + proxy.count('LOCK.QUEUE') === 2);
  await until('the extend is answered', () => proxy.heldReplies.length > 0);
  proxy.deliver();
  assert.equal(await extended, true);
  assert.equal(await again, lock.fence);
  assert((await lock.left()) > 500_000);
  assert(lock.leaseLeftMs > 500_000);
  assert.deepEqual([await lock.release(), await lock.release()], [true, true]);
});

check('a further hold that was sent before an extend leaves its lease alone', async (locks, proxy) => {
  const lock = locks.lock('k', { leaseMs: 5000, renew: false, reentrant: true });
  await lock.acquire();
  proxy.heldReplies = [];
  const again = lock.acquire();
  await until('the acquire is sent', () => proxy.count('LOCK.ACQUIRE') + proxy.count('LOCK.QUEUE') === 2);
  const extended = lock.extend(600_000);
  await until('the extend follows', () => proxy.count('LOCK.EXTEND') === 1 && proxy.heldReplies.length > 0);
  proxy.deliver();
  assert.equal(await extended, true);
  assert.equal(await again, lock.fence);
  assert(lock.leaseLeftMs > 500_000);
  assert.deepEqual([await lock.release(), await lock.release()], [true, true]);
});

check('an extend to a shorter lease counts from its sending, even if its reply is lost', async (locks, proxy) => {
  const lock = await locks.acquire('k', { leaseMs: 60_000 });
  proxy.request = (text, near, far) => {
    if (!text.includes('LOCK.EXTEND')) return undefined;
    // The reply doesn't pass.
    far.removeAllListeners('data').resume();
    return undefined;
  };
  await assert.rejects(lock.extend(4000), UnavailableError);
  assert(lock.leaseLeftMs <= 4000, `${lock.leaseLeftMs} ms are left`);
  proxy.request = () => undefined;
  await until('the old lease is set again', () => lock.lost || lock.leaseLeftMs > 50_000);
  assert.equal(await lock.release(), true);
}, 1000);

check('a hold ends in time after an extend to a shorter lease without a reply', async (locks, proxy) => {
  const lock = await locks.acquire('k', { leaseMs: 60_000 });
  proxy.request = (text) => (text.includes('LOCK.EXTEND') ? null : undefined);
  const extended = lock.extend(300);
  await until('it is lost', () => lock.lost);
  assert.equal(await extended, false);
});

check('a release in the background ends no later grant of a chosen token', async (locks, proxy) => {
  const lock = locks.lock('k', { token: 'me', leaseMs: 60_000, atLeastMs: 40_000 });
  await lock.acquire();
  proxy.request = (text) => (/LOCK\.(EXTEND|RELEASE)/.test(text) ? LOADING : undefined);
  await assert.rejects(lock.release(), UnavailableError);
  await assert.rejects(lock.acquire({ waitMs: 300 }), UnavailableError);
  proxy.request = () => undefined;
  assert.equal(typeof (await lock.acquire({ waitMs: 10_000 })), 'number');
}, 500);

for (const waitMs of [0, 300]) {
  check(`a call with the limit ${waitMs} behind one without a reply is told of no other owner`, async (locks, proxy) => {
    const lock = locks.lock('k');
    proxy.request = (text) => (text.includes('LOCK.') ? null : undefined);
    const abort = new AbortController();
    const first = lock.acquire({ signal: abort.signal });
    await until('it is sent', () => proxy.count('LOCK.QUEUE') === 1);
    await assert.rejects(lock.acquire({ waitMs }), UnavailableError);
    abort.abort();
    await assert.rejects(first, { name: 'AbortError' });
  }, 3000);
}

check('a call is told of the owners that had the object before it', async (locks, proxy) => {
  const lock = locks.lock('k');
  await lock.acquire();
  const first = lock.acquire();
  const second = lock.acquire({ waitMs: 1500 });
  proxy.heldReplies = [];
  const released = lock.release();
  await until('it is released', () => proxy.heldReplies.length > 0);
  proxy.deliver();
  proxy.heldReplies = [];
  assert.equal(await released, true);
  assert.equal(await second, undefined);
  proxy.deliver();
  assert.equal(typeof (await first), 'number');
  assert.equal(await lock.release(), true);
});

check('a release that the server refused has not released a lock that is gone', async (locks, proxy) => {
  const lock = await locks.acquire('k', { leaseMs: 60_000 });
  proxy.request = (text) => (text.includes('LOCK.RELEASE') ? LOADING : undefined);
  const released = lock.release();
  await until('it is refused', () => proxy.count('LOCK.RELEASE') === 1);
  await server.redis.del('k');
  proxy.request = () => undefined;
  assert.equal(await released, false);
});

check('a release that was never sent has not released a lock that is gone', async (locks, proxy) => {
  const lock = await locks.acquire('k', { leaseMs: 60_000 });
  await proxy.stop();
  // The library knows that its connection has ended.
  await assert.rejects(locks.lock('other').acquire({ waitMs: 200 }), UnavailableError);
  const released = lock.release();
  await server.redis.del('k');
  await proxy.start(proxy.port);
  assert.equal(await released, false);
});

check('a release without a reply has released a lock that is gone', async (locks, proxy) => {
  const lock = await locks.acquire('k', { leaseMs: 60_000 });
  proxy.request = (_text, near, far) => {
    proxy.request = () => undefined;
    far.removeAllListeners('data').once('data', () => near.destroy());
  };
  assert.equal(await lock.release(), true);
});

check('a try that was refused leaves nothing to clean up', async (locks, proxy) => {
  proxy.request = (text) => (text.includes('LOCK.ACQUIRE') ? LOADING : undefined);
  await assert.rejects(locks.lock('k').tryAcquire(), UnavailableError);
  proxy.request = () => undefined;
  assert.equal(await (await locks.acquire('other')).release(), true);
  assert.equal(proxy.count('LOCK.CANCEL'), 0);
}, 500);

check('a try without a reply and then with an error gives its grant up', async (locks, proxy) => {
  proxy.request = (text, near, far) => {
    if (!text.includes('LOCK.ACQUIRE')) return undefined;
    if (proxy.count('LOCK.ACQUIRE') > 1) return '-NOPERM not this user\r\n';
    far.removeAllListeners('data').once('data', () => near.destroy());
    return undefined;
  };
  await assert.rejects(locks.lock('k', { leaseMs: 60_000 }).tryAcquire(), /NOPERM/);
  await until('it is free', async () => (await info(server.redis, 'k')).holders === 0);
});

check('a subscription that fails is not tried again at once', async (locks, proxy) => {
  const held = await locks.acquire('k');
  proxy.request = (text, near) => (/\r\nsubscribe\r\n/i.test(text) ? near.destroy() && null : undefined);
  const abort = new AbortController();
  const waiting = locks.acquire('k', { keepMs: 60_000, signal: abort.signal }).catch((error) => error);
  const subscriptions = () => proxy.count('subscribe') + proxy.count('SUBSCRIBE');
  await until('the first one has failed', () => subscriptions() > 0);
  const began = performance.now();
  await until('two more have failed', () => subscriptions() > 2);
  assert(performance.now() - began > 1500);
  abort.abort();
  await waiting;
  await held.release();
});

check('a release that finds a lock that is known as lost reports no second loss', async (locks, proxy) => {
  let losses = 0;
  const lock = locks.lock('k', { leaseMs: 60_000, session: true, reentrant: true, onLost: () => losses++ });
  const sessions = new Set();
  let refuse;
  proxy.request = (text, near) => {
    if (text.includes('LOCK.EXTEND')) sessions.add(near);
    if (!text.includes('LOCK.RELEASE') || refuse) return undefined;
    refuse = () => near.write(':0\r\n');
    return null;
  };
  await lock.acquire();
  await lock.acquire();
  const released = lock.release();
  await until('it is sent', () => refuse);
  await server.redis.del('k');
  sessions.forEach((each) => each.destroy());
  await until('it is lost', () => losses === 1);
  refuse();
  assert.equal(await released, false);
  await assert.rejects(lock.acquire(), LockLostError);
  assert.equal(losses, 1);
  assert.equal(await lock.release(), false);
});

check('a release of several keys that finds one lost gives up the others', async (locks) => {
  const lock = locks.lock(['a', 'b'], { leaseMs: 60_000, reentrant: true });
  await lock.acquire();
  await lock.acquire();
  await server.redis.del('a');
  assert.equal(await lock.release(), false);
  assert.equal(await lock.release(), false);
  await until('the other is free', async () => (await info(server.redis, 'b')).holders === 0);
});

test('a cluster is found by its other nodes if the only seed is silent', { timeout: 60_000 }, async (t) => {
  const cluster = await startCluster();
  t.after(() => cluster.stop());
  const proxy = await startProxy(cluster.nodes[0]);
  t.after(() => proxy.stop());
  const client = new Cluster([{ host: '127.0.0.1', port: proxy.port }]);
  t.after(() => client.disconnect());
  client.on('error', () => {});
  await until('it knows the nodes', () => client.status === 'ready' && client.nodes('master').length === 3);
  proxy.request = () => null;
  const lock = new Locks(client, { commandTimeoutMs: 4000 }).lock('k');
  assert.equal(typeof (await lock.acquire({ waitMs: 15_000 })), 'number');
  assert.equal(await lock.release(), true);
});
