// Behaviours that the conformance suite can't check, because its drivers have no order for them.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Redis } from 'ioredis';
import { createClient } from 'redis';

import { connect } from './clients.mjs';
import { info, startServer, until } from './server.mjs';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

for (const kind of ['ioredis', 'node-redis']) {
  const { LockLost, Locks, NotAcquired } = await import(`../dist/${kind}.js`);

  /** Defines a test with a client of this kind. */
  const check = (what, work) =>
    test(`${kind}: ${what}`, { timeout: 60_000 }, async () => {
      const client = await connect(kind, [server.address]);
      try {
        await server.redis.flushall();
        await work(new Locks(client), client);
      } finally {
        await client.quit();
      }
    });

  check('a wait that is aborted is rejected with the reason itself', async (locks) => {
    const held = await locks.acquire('k');
    for (const reason of [new Error('enough'), new Error('HTTP request is gone'), 'no error at all']) {
      const abort = new AbortController();
      const waiting = locks.acquire('k', { keepMs: 60_000, signal: abort.signal });
      await until('it waits', async () => (await info(server.redis, 'k')).waiters === 1);
      abort.abort(reason);
      await assert.rejects(waiting, (error) => error === reason);
      // The client doesn't wait long for the server's confirmation.
      await until('it has left the queue', async () => (await info(server.redis, 'k')).waiters === 0);
    }
    await held.release();
  });

  check('a signal that is aborted already has nothing sent', async (locks) => {
    const before = await server.redis.info('commandstats');
    await assert.rejects(locks.acquire('k', { signal: AbortSignal.abort() }), { name: 'AbortError' });
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
    assert.equal(/lock\.queue:calls=\d+/i.exec(await server.redis.info('commandstats'))?.[0], /lock\.queue:calls=\d+/i.exec(before)?.[0]);
  });

  check('the signal of AbortSignal.timeout() ends a wait', async (locks) => {
    const held = await locks.acquire('k');
    const signal = AbortSignal.timeout(100);
    await assert.rejects(locks.acquire('k', { signal }), { name: 'TimeoutError' });
    await held.release();
  });

  check('acquire() of Locks throws NotAcquired when the time is over', async (locks) => {
    const held = await locks.acquire('k');
    await assert.rejects(locks.acquire('k', { waitMs: 100 }), NotAcquired);
    await assert.rejects(locks.acquire('k', { waitMs: 0 }), NotAcquired);
    assert.equal(await locks.lock('k').acquire(), undefined);
    await held.release();
  });

  check('using() gives what the work gives, and the lock is free after it', async (locks) => {
    const result = await locks.using(['a', 'b'], { leaseMs: 5000 }, async (signal, lock) => {
      assert.equal(signal.aborted, false);
      assert.equal((await info(server.redis, 'b')).holders, 1);
      return lock.fence;
    });
    assert.equal(typeof result, 'number');
    assert.deepEqual(await info(server.redis, 'b'), { holders: 0, waiters: 0 });
  });

  check('using() throws what the work throws, and the lock is free after it', async (locks) => {
    const fault = new Error('of the work');
    await assert.rejects(locks.using('k', {}, () => Promise.reject(fault)), (error) => error === fault);
    await assert.rejects(
      locks.using('k', {}, () => {
        throw fault;
      }),
      (error) => error === fault,
    );
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('using() aborts its signal upon a loss, and throws LockLost', async (locks) => {
    let reason;
    const work = locks.using('k', { leaseMs: 300 }, async (signal) => {
      await server.redis.del('k');
      await until('it is told', () => signal.aborted);
      reason = signal.reason;
    });
    await assert.rejects(work, LockLost);
    assert(reason instanceof LockLost);
  });

  check('using() prefers the error of the work to the loss', async (locks) => {
    const work = locks.using('k', { leaseMs: 300 }, async (signal) => {
      await server.redis.del('k');
      await until('it is told', () => signal.aborted);
      throw new TypeError('of the work');
    });
    await assert.rejects(work, TypeError);
  });

  check('a lock that was lost can be acquired again, with a new signal', async (locks) => {
    let losses = 0;
    const lock = locks.lock('k', { leaseMs: 3000, onLost: () => losses++ });
    const first = await lock.acquire();
    const lost = lock.signal;
    await server.redis.del('k');
    await until('it is lost', () => lock.lost);
    assert.equal(lost.aborted, true);
    assert.equal(lock.fence, undefined);
    assert((await lock.acquire()) > first);
    assert.equal(lock.lost, false);
    assert.equal(lock.signal.aborted, false);
    assert.equal(await lock.release(), true);
    assert.equal(losses, 1);
  });

  check('a further hold of a lock that was lost is refused with LockLost', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 60_000 });
    await lock.acquire();
    await server.redis.del('k');
    await assert.rejects(lock.acquire(), LockLost);
    assert.equal(lock.lost, true);
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('tasks that share one Lock take turns in counting its holds', async (locks) => {
    const lock = locks.lock('k');
    const fences = await Promise.all(Array.from({ length: 20 }, () => lock.acquire({ waitMs: 5000 })));
    assert.equal(new Set(fences).size, 1);
    const holds = await server.redis.call('LOCK.INFO', 'k');
    assert.equal(holds[holds.indexOf('holders') + 1][0][5], 20);
    const released = await Promise.all(Array.from({ length: 20 }, () => lock.release()));
    assert(released.every(Boolean));
    assert.equal(await lock.release(), false);
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('two waits on one Lock: the second one has a time limit of its own', async (locks) => {
    const held = await locks.acquire('k');
    const lock = locks.lock('k');
    const first = lock.acquire({ waitMs: 20_000 });
    assert.equal(await lock.acquire({ waitMs: 100 }), undefined);
    await held.release();
    assert.equal(typeof (await first), 'number');
    await lock.release();
  });

  check('an error of the server is thrown as the client words it', async (locks) => {
    await server.redis.set('k', 'a string');
    await assert.rejects(locks.acquire('k'), /^(ReplyError|SimpleError|ErrorReply|Error): WRONGTYPE/);
    await assert.rejects(locks.lock('k', { limit: 0, shared: true }).acquire(), /WRONGTYPE|invalid limit/);
  });

  check('the order of tasks that ask one after the other is kept', async (locks) => {
    const held = await locks.acquire('k');
    const order = [];
    const tasks = Array.from({ length: 10 }, (_, i) => locks.using('k', {}, async () => void order.push(i)));
    await until('all wait', async () => (await info(server.redis, 'k')).waiters === 10);
    await held.release();
    await Promise.all(tasks);
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });

  check('all tasks wait on one connection more, whatever their number', async (locks, client) => {
    const held = await locks.acquire('k');
    const connections = async () => Number(/connected_clients:(\d+)/.exec(await server.redis.info('clients'))[1]);
    const alone = 2;
    await until('those of the test before are closed', async () => (await connections()) === alone);
    const abort = new AbortController();
    const tasks = Array.from({ length: 30 }, () => locks.acquire('k', { signal: abort.signal }).catch(() => {}));
    await until('all wait', async () => (await info(server.redis, 'k')).waiters === 30);
    await until('they listen', async () => (await server.redis.pubsub('CHANNELS')).length > 0);
    assert.equal(await connections(), alone + 1);
    abort.abort();
    await Promise.all(tasks);
    await held.release();
  });

  check('a client that is closed rejects what still waits, with its own error', async (locks) => {
    const held = await locks.acquire('k');
    const client = await connect(kind, [server.address]);
    const waiting = new Locks(client).acquire('k');
    const rejected = assert.rejects(waiting, /clos|disconnect/i);
    await until('it waits', async () => (await info(server.redis, 'k')).waiters === 1);
    await client.quit();
    await rejected;
    await held.release();
  });

  check('a client that was closed and opened again has those who wait told as before', async (locks, client) => {
    await handedOver(locks);
    const closed = once(client, 'end');
    await client.quit();
    await closed;
    await client.connect();
    await handedOver(locks);
  });

  check('a message from somebody else does no harm', async (locks) => {
    const held = await locks.acquire('k');
    const waiting = locks.acquire('k');
    const [channel] = await until('it listens', async () => {
      const channels = await server.redis.pubsub('CHANNELS', 'redis-lock:*');
      return channels.length > 0 && channels;
    });
    for (const message of ['error', 'missed', '']) await server.redis.publish(channel, message);
    await held.release();
    await (await waiting).release();
  });

  check('the token and the keys are as they were given', async (locks) => {
    const lock = locks.lock(['a', 'b'], { token: 'me' });
    assert.deepEqual([lock.token, lock.keys], ['me', ['a', 'b']]);
    assert.match(locks.lock('a').token, /^[0-9a-f]{32}$/);
  });

  check('a session is on a connection of its own, which ends with the lock', async (locks) => {
    const ids = async () => (await server.redis.client('LIST')).trim().split('\n').length;
    const alone = 2;
    await until('those of the test before are closed', async () => (await ids()) === alone);
    const lock = await locks.acquire('k', { session: true, leaseMs: 60_000 });
    assert.equal(await ids(), alone + 1);
    assert.equal(await lock.release(), true);
    await until('the connection is closed', async () => (await ids()) === alone);
  });

  check('a session whose connection is closed by the server is lost at once', async (locks) => {
    const lock = await locks.acquire('k', { session: true, leaseMs: 60_000 });
    const held = await server.redis.call('LOCK.INFO', 'k');
    const holder = held[held.indexOf('holders') + 1][0];
    await server.redis.client('KILL', 'ID', holder[holder.indexOf('client-id') + 1]);
    const began = performance.now();
    await until('it is told', () => lock.lost);
    assert(performance.now() - began < 5000);
    await assert.rejects(lock[Symbol.asyncDispose](), LockLost);
  });

  check('a time that is too long for a timer is none', async (locks) => {
    const lock = await locks.acquire('k', { leaseMs: 2 ** 40, waitMs: 2 ** 40 });
    await sleep(50);
    assert.equal(lock.lost, false);
    assert.equal(await lock.release(), true);
  });
}

test('ioredis: commandTimeout, no offline queue and few retries only have it ask again', { timeout: 60_000 }, async (t) => {
  const { Locks } = await import('../dist/ioredis.js');
  const redis = new Redis(server.port, { commandTimeout: 300, enableOfflineQueue: false, maxRetriesPerRequest: 0 });
  t.after(() => redis.disconnect());
  await new Promise((ready) => redis.once('ready', ready));
  await askedAgain(new Locks(redis));
});

test('ioredis: a release whose answer came too late was a release', { timeout: 60_000 }, async (t) => {
  const { Locks } = await import('../dist/ioredis.js');
  const redis = new Redis(server.port, { commandTimeout: 300 });
  t.after(() => redis.disconnect());
  await server.redis.flushall();
  const lock = new Locks(redis).lock('k');
  assert(await lock.acquire({ waitMs: 20_000 }));
  await server.call('CLIENT PAUSE 1000 ALL');
  assert.equal(await lock.release(), true);
  assert.equal(lock.lost, false);
  assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
});

test('ioredis: without an offline queue a session is had at the first try', { timeout: 60_000 }, async (t) => {
  const { Locks } = await import('../dist/ioredis.js');
  const redis = new Redis(server.port, { enableOfflineQueue: false });
  t.after(() => redis.disconnect());
  await new Promise((ready) => redis.once('ready', ready));
  await server.redis.flushall();
  const lock = new Locks(redis).lock('k', { session: true });
  assert(await lock.acquire());
  assert.equal(await lock.release(), true);
});

for (const [what, socket] of Object.entries({
  'a time limit of its socket': { socketTimeout: 2000 },
  'no second try to connect': { reconnectStrategy: false },
})) {
  test(`node-redis: a client with ${what} has those who wait told and holds sessions`, { timeout: 60_000 }, async (t) => {
    const { Locks } = await import('../dist/node-redis.js');
    const client = createClient({ url: server.url, socket });
    client.on('error', () => {});
    await client.connect();
    t.after(() => closed(client));
    await server.redis.flushall();
    // Other commands keep the client's own connection busy, so that its time limit doesn't close
    // it.
    const busy = setInterval(() => client.ping().catch(() => {}), 50);
    t.after(() => clearInterval(busy));
    const locks = new Locks(client);
    const session = await locks.acquire('session', { session: true, leaseMs: 60_000 });
    await handedOver(locks);
    await server.call('CLIENT KILL TYPE pubsub');
    await sleep(2500);
    await handedOver(locks);
    assert.equal(await session.release(), true);
  });
}

test('node-redis: a command that is never answered is sent again before the grant has lapsed', { timeout: 60_000 }, async (t) => {
  const client = await connect('node-redis', [server.address]);
  t.after(() => closed(client));
  await server.redis.flushall();
  const send = client.sendCommand.bind(client);
  let swallowed = 0;
  client.sendCommand = (words) => {
    if (words[0] !== 'LOCK.QUEUE' || swallowed > 0) return send(words);
    swallowed += 1;
    return send(words).then(() => new Promise(() => {}));
  };
  const { Locks } = await import('../dist/node-redis.js');
  await server.redis.call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60_000);
  const began = performance.now();
  const waiting = new Locks(client).acquire('k', { keepMs: 6000 });
  await until('it waits', async () => (await info(server.redis, 'k')).waiters === 1);
  await server.redis.call('LOCK.QUEUE', 'k', 'behind', 'KEEP', 60_000);
  await server.redis.call('LOCK.RELEASE', 'k', 'other');
  const lock = await waiting;
  const tookMs = performance.now() - began;
  assert(tookMs < 5900, `after ${tookMs} ms`);
  assert.equal(await lock.release(), true);
  assert.equal(swallowed, 1);
});

test('node-redis: a message that is lost costs no turn, though the lease is short', { timeout: 60_000 }, async (t) => {
  const client = await connect('node-redis', [server.address]);
  t.after(() => closed(client));
  await server.redis.flushall();
  const duplicate = client.duplicate.bind(client);
  client.duplicate = (overrides) => Object.assign(duplicate(overrides), { subscribe: async () => {} });
  const { Locks } = await import('../dist/node-redis.js');
  await server.redis.call('LOCK.ACQUIRE', 'k', 'other', 'PX', 60_000);
  const waiting = new Locks(client).acquire('k', { leaseMs: 6000, keepMs: 60_000 });
  await until('it waits', async () => (await info(server.redis, 'k')).waiters === 1);
  await server.redis.call('LOCK.QUEUE', 'k', 'behind', 'KEEP', 60_000);
  await server.redis.call('LOCK.RELEASE', 'k', 'other');
  const began = performance.now();
  const lock = await waiting;
  const tookMs = performance.now() - began;
  assert(tookMs < 6000, `after ${tookMs} ms`);
  assert.equal(await lock.release(), true);
});

test('node-redis: no offline queue only has it ask again', { timeout: 60_000 }, async (t) => {
  const { Locks } = await import('../dist/node-redis.js');
  const client = createClient({ url: server.url, disableOfflineQueue: true });
  client.on('error', () => {});
  await client.connect();
  t.after(() => closed(client));
  await askedAgain(new Locks(client));
});

/** Closes a client of node-redis. An open client of a failed test would keep the run alive. */
function closed(client) {
  if (client.isOpen) client.destroy();
}

/** Checks a wait and a held lock while the server exceeds the client's time limit. */
async function askedAgain(locks) {
  await server.redis.flushall();
  await server.call('LOCK.ACQUIRE taken other PX 60000');
  const waiting = locks.acquire('taken', { keepMs: 6000 });
  const held = await locks.acquire('free', { leaseMs: 6000 });
  await until('it waits', async () => (await info(server.redis, 'taken')).waiters === 1);
  await server.call('CLIENT PAUSE 1000 ALL');
  await server.call('CLIENT KILL TYPE normal');
  await server.call('LOCK.RELEASE taken other');
  assert.equal(await (await waiting).release(), true);
  await sleep(2000);
  assert.equal(held.lost, false);
  assert.equal(await held.release(), true);
}

/** Checks that a waiter is notified promptly of its turn, before it would ask again. */
async function handedOver(locks) {
  const held = await locks.acquire('handed over', { keepMs: 60_000 });
  const waiting = locks.acquire('handed over', { keepMs: 60_000 });
  await until('it waits', async () => (await info(server.redis, 'handed over')).waiters === 1);
  await until('it listens', async () => (await server.redis.pubsub('CHANNELS', 'redis-lock:*')).length > 0);
  const began = performance.now();
  await held.release();
  const next = await waiting;
  assert(performance.now() - began < 5000, 'told promptly');
  await next.release();
}
