// Behaviours that the conformance suite can't check, because its drivers have no order for them.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Redis } from 'ioredis';
import { createClient } from 'redis';

import { connect } from './clients.mjs';
import { info, startServer, until } from './server.mjs';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

for (const kind of ['ioredis', 'node-redis']) {
  const { LockLostError, Locks, NotAcquiredError, NotHeldError, UnavailableError } = await import(`../dist/${kind}.js`);

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
    await assert.rejects(locks.acquire('k', { waitMs: 0 }), NotAcquiredError);
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

  check('using() aborts its signal upon a loss, and throws LockLostError', async (locks) => {
    let reason;
    const work = locks.using(['k', 'other'], { leaseMs: 300 }, async (signal, lock) => {
      assert.deepEqual([signal.aborted, lock.keys], [false, ['k', 'other']]);
      assert.equal((await info(server.redis, 'other')).holders, 1);
      await server.redis.del('k');
      await until('it is told', () => signal.aborted);
      reason = signal.reason;
    });
    await assert.rejects(work, LockLostError);
    assert(reason instanceof LockLostError);
  });

  check('a lock that was lost can be acquired again, with a new signal', async (locks) => {
    let losses = 0;
    const lock = locks.lock('k', { leaseMs: 3000, onLost: () => losses++ });
    const first = await lock.tryAcquire();
    const lost = lock.signal;
    await server.redis.del('k');
    await until('it is lost', () => lock.lost);
    assert.equal(lost.aborted, true);
    assert.equal(lock.fence, first);
    assert((await lock.tryAcquire()) > first);
    assert.equal(lock.lost, false);
    assert.equal(lock.signal.aborted, false);
    assert.equal(await lock.release(), true);
    assert.equal(losses, 1);
  });

  check('a further hold of a lock that was lost is refused with LockLostError', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 60_000, reentrant: true });
    await lock.acquire();
    await server.redis.del('k');
    await assert.rejects(lock.acquire(), LockLostError);
    assert.equal(lock.lost, true);
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('tasks that share one reentrant Lock take turns in counting its holds', async (locks) => {
    const lock = locks.lock('k', { reentrant: true });
    const fences = await Promise.all(Array.from({ length: 20 }, () => lock.acquire({ waitMs: 5000 })));
    assert.equal(new Set(fences).size, 1);
    const holds = await server.redis.call('LOCK.INFO', 'k');
    assert.equal(holds[holds.indexOf('holders') + 1][0][5], 20);
    const released = await Promise.all(Array.from({ length: 20 }, () => lock.release()));
    assert(released.every(Boolean));
    await assert.rejects(lock.release(), NotHeldError);
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

  check('all tasks share two connections, whatever their number', async (locks, client) => {
    const held = await locks.acquire('k');
    const connections = async () => Number(/connected_clients:(\d+)/.exec(await server.redis.info('clients'))[1]);
    await until('those of the test before are closed', async () => (await connections()) === 3);
    const abort = new AbortController();
    const tasks = Array.from({ length: 30 }, () => locks.acquire('k', { signal: abort.signal }).catch(() => {}));
    await until('all wait', async () => (await info(server.redis, 'k')).waiters === 30);
    await until('they listen', async () => (await server.redis.pubsub('CHANNELS')).length > 0);
    // The client of the server's test, this client, and the library's two.
    assert.equal(await connections(), 4);
    abort.abort();
    await Promise.all(tasks);
    await held.release();
  });

  check('a client that is closed rejects what still waits', async (locks) => {
    const held = await locks.acquire('k');
    const client = await connect(kind, [server.address]);
    const waiting = new Locks(client).acquire('k');
    const rejected = assert.rejects(waiting, { name: 'UnavailableError', message: 'the client is closed' });
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

  check('a session is on a connection of its own, which ends with the lock', async (locks) => {
    const ids = async () => (await server.redis.client('LIST')).trim().split('\n').length;
    await locks.using('warm', {}, () => {});
    const alone = 3;
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
    await assert.rejects(lock[Symbol.asyncDispose](), LockLostError);
  });

  check('a time that is too long for a timer is none', async (locks) => {
    const lock = await locks.acquire('k', { leaseMs: 2 ** 40, waitMs: 2 ** 40, maxHoldMs: Infinity });
    await sleep(50);
    assert.equal(lock.lost, false);
    assert.equal(await lock.release(), true);
  });

  check('a lock object has one owner at a time, in order', async (locks) => {
    const lock = locks.lock('k');
    const order = [];
    let inside = 0;
    const task = async (_, i) => {
      await lock.acquire();
      order.push(i);
      assert.equal((inside += 1), 1);
      await sleep(5);
      inside -= 1;
      await lock.release();
    };
    await Promise.all(Array.from({ length: 5 }, task));
    assert.deepEqual(order, [0, 1, 2, 3, 4]);
  });

  check('a held object is refused to a try and to a limited wait, without a command', async (locks) => {
    const lock = locks.lock('k');
    await lock.acquire();
    await server.call('CONFIG RESETSTAT');
    assert.equal(await lock.tryAcquire(), undefined);
    assert.equal(await lock.acquire({ waitMs: 50 }), undefined);
    assert.doesNotMatch(await server.redis.info('commandstats'), /lock\./i);
    await assert.rejects(lock.acquire({ signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    assert.equal(await lock.release(), true);
    await assert.rejects(lock.release(), NotHeldError);
  });

  check('after a loss, the next task in line waits for the release of the task that lost', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 2000 });
    await lock.acquire();
    const next = lock.acquire();
    await server.redis.del('k');
    await until('it is lost', () => lock.lost);
    assert.equal(await Promise.race([next, sleep(200, 'it waits')]), 'it waits');
    assert.equal(await lock.release(), false);
    assert.equal(await next, lock.fence);
    assert.equal(await lock.release(), true);
  });

  check('after a loss, a release returns false even if another task has tried since', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 300 });
    await lock.acquire();
    await server.redis.del('k');
    await server.call('LOCK.ACQUIRE k other PX 60000');
    await until('it is lost', () => lock.lost);
    assert.equal(await lock.tryAcquire(), undefined);
    assert.equal(lock.lost, true);
    assert.equal(await lock.release(), false);
  });

  check("an abort upon the turn in the object's line passes the turn on", async (locks) => {
    const abort = new AbortController();
    const onLost = (lost) => {
      void lost.release();
      abort.abort();
    };
    const lock = locks.lock('k', { leaseMs: 2000, renew: false, onLost });
    await lock.acquire();
    const waits = [lock.acquire({ signal: abort.signal }), lock.acquire({ waitMs: 10_000 })];
    await assert.rejects(waits[0], { name: 'AbortError' });
    assert.equal(typeof (await waits[1]), 'number');
    assert.equal(await lock.release(), true);
    assert.equal(typeof (await lock.acquire({ waitMs: 10_000 })), 'number');
    assert.equal(await lock.release(), true);
  });

  check('an acquire of a reentrant lock during its last release gets a grant of its own', async (locks) => {
    const lock = locks.lock('k', { reentrant: true });
    const first = await lock.acquire();
    await lock.acquire();
    const releases = [lock.release(), lock.release()];
    const next = lock.acquire();
    const tried = lock.tryAcquire();
    assert.deepEqual(await Promise.all(releases), [true, true]);
    assert((await next) > first);
    assert.equal(await tried, await next);
    assert.deepEqual([lock.lost, await lock.owned()], [false, true]);
    assert.deepEqual([await lock.release(), await lock.release()], [true, true]);
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('an acquire of a reentrant lock is not granted what a resent release ends', async (_, client) => {
    const locks = new Locks(client, { commandTimeoutMs: 20_000 });
    const lock = locks.lock('k', { leaseMs: 60_000, reentrant: true });
    await lock.acquire();
    const { released, next } = await duringOutage(async () => {
      const refusals = await refusedReleases();
      const calls = { released: lock.release() };
      // The pause before the fifth command is longer than all the pauses before it.
      await until('four are refused', async () => (await refusedReleases()) >= refusals + 4);
      calls.next = lock.acquire();
      return calls;
    });
    assert.equal(await released, true);
    assert.equal(typeof (await next), 'number');
    assert.equal(await lock.owned(), true);
    assert.equal(await lock.release(), true);
  });

  check('a release of a reentrant lock ends in time behind an acquire that goes on', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 60_000, reentrant: true });
    await lock.acquire();
    const next = await duringOutage(async () => {
      const acquired = lock.acquire();
      await assert.rejects(lock.release(), UnavailableError);
      return { acquired };
    });
    assert.equal(await next.acquired, lock.fence);
    await until('the release went on', async () => (await holdsOf('k')) === 1);
    assert.equal(await lock.release(), true);
  });

  check('an acquire of a reentrant lock ends at its limit or signal behind a release that goes on', async (_, client) => {
    const locks = new Locks(client, { commandTimeoutMs: 20_000 });
    const lock = locks.lock('k', { leaseMs: 60_000, reentrant: true });
    await lock.acquire();
    await lock.acquire();
    const { released } = await duringOutage(async () => {
      const calls = { released: lock.release() };
      const began = performance.now();
      await assert.rejects(lock.acquire({ waitMs: 100 }), UnavailableError);
      await assert.rejects(lock.acquire({ signal: AbortSignal.timeout(100) }), { name: 'TimeoutError' });
      assert(performance.now() - began < 10_000);
      return calls;
    });
    assert.deepEqual([await released, await lock.release()], [true, true]);
  });

  check('a further hold without a limit ends with the lock in an outage', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 1000, reentrant: true });
    await lock.acquire();
    await duringOutage(async () => {
      await assert.rejects(lock.acquire(), LockLostError);
      assert.equal(await lock.release(), false);
    });
    assert.equal(typeof (await lock.acquire()), 'number');
    assert.equal(await lock.release(), true);
  });

  check('extend() to a shorter lease has the lock renewed in time', async (locks) => {
    const lock = await locks.acquire('k', { leaseMs: 60_000 });
    assert.equal(await lock.extend(2000), true);
    const began = performance.now();
    await until('the first two leases would be over', () => lock.lost || performance.now() - began > 4000);
    assert.equal(lock.lost, false);
    assert(Number(await server.redis.call('LOCK.CHECK', 'k', lock.token)) <= 2000);
    assert.equal(await lock.release(), true);
  });

  check('a further hold keeps the lease that extend() has set', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 3000, reentrant: true });
    await lock.acquire();
    await lock.extend(300_000);
    await lock.acquire();
    assert((await lock.left()) > 200_000);
    assert.equal(await lock.release(), true);
    assert.equal(await lock.release(), true);
  });

  check('wrong arguments are refused by name, before anything is sent', async (locks, client) => {
    await server.call('CONFIG RESETSTAT');
    const wrong = {
      leaseMs: [0, -1, NaN, Infinity, 2 ** 53, '30'],
      waitMs: [-1, NaN, '1'],
      keepMs: [0, NaN],
      maxHoldMs: [0, NaN, -1],
      atLeastMs: [-1, NaN, Infinity],
      token: ['', '*', 'x'.repeat(257), 5],
      limit: [0, 1.5, 2 ** 32],
      permits: [1],
      data: ['x'.repeat(1025), 5],
      replicas: [0, 1001],
      renew: ['no'],
      onLost: ['no'],
      lease: [30],
    };
    for (const [name, values] of Object.entries(wrong)) {
      for (const value of values) {
        const refused = (error) => (error instanceof TypeError || error instanceof RangeError) && error.message.startsWith(`${name}: `);
        assert.throws(() => locks.lock('k', { [name]: value }), refused, `${name} ${value}`);
      }
    }
    assert.throws(() => locks.lock('k', { limit: 2, permits: 3 }), /^RangeError: permits: /);
    for (const keys of [[], ['a', 'a'], [5], undefined]) assert.throws(() => locks.lock(keys), /^(Type|Range)Error: keys: /);
    for (const options of [2500, null, 'k']) {
      await assert.rejects(locks.lock('k').acquire(options), /^TypeError: options: /);
      await assert.rejects(locks.lock('k').tryAcquire(options), /^TypeError: options: /);
      await assert.rejects(locks.acquire('k', options), /^TypeError: options: /);
      await assert.rejects(locks.using('k', options, () => {}), /^TypeError: options: /);
    }
    await assert.rejects(locks.lock('k').acquire({ waitMs: NaN }), /^RangeError: waitMs: /);
    for (const lease of [NaN, 0, -1, Infinity, 2 ** 53]) await assert.rejects(locks.lock('k').extend(lease), /^RangeError: leaseMs: /);
    await assert.rejects(locks.lock('k').extend('300'), /^TypeError: leaseMs: /);
    await assert.rejects(locks.lock('k').acquire({ signal: 5 }), /^TypeError: signal: /);
    await assert.rejects(locks.using('k', {}), /^TypeError: work: /);
    await assert.rejects(locks.using('k', () => {}, undefined), TypeError);
    assert.throws(() => new Locks(client, { commandTimeoutMs: 0 }), /^RangeError: commandTimeoutMs: /);
    for (const observer of [null, 5]) assert.throws(() => new Locks(client, { observer }), /^TypeError: observer: /);
    assert.doesNotMatch(await server.redis.info('commandstats'), /lock\./i);
  });

  check('a client of the other library is refused', async (locks) => {
    const other = await connect(kind === 'ioredis' ? 'node-redis' : 'ioredis', [server.address]);
    for (const wrong of [other, {}, undefined]) assert.throws(() => new Locks(wrong), /^TypeError: client: /);
    await other.quit();
  });

  check('release_all releases every lock that is held, and counts those that were not lost', async (locks) => {
    const held = [await locks.acquire('a'), await locks.acquire('b', { session: true }), await locks.acquire('c')];
    const twice = locks.lock('d', { reentrant: true });
    await twice.acquire();
    await twice.acquire();
    await server.redis.del('c');
    assert.equal(await locks.releaseAll(), 3);
    assert.equal(await server.redis.exists('a', 'b', 'c', 'd'), 0);
    assert.equal(held[2].lost, true);
    assert.equal(await locks.releaseAll(), 0);
  });

  check('a lock that nobody refers to is released', async (locks) => {
    let lock = await locks.acquire('k', { leaseMs: 300 });
    const session = await locks.acquire('other', { leaseMs: 60_000, session: true });
    lock = undefined;
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc');
    const freed = async () => {
      collect();
      return (await info(server.redis, 'k')).holders === 0;
    };
    // The lease is renewed, so the lock doesn't end by itself.
    await until('it is free', freed);
    assert.equal(await session.release(), true);
  });

  check('a lock has its token, and its text has the state', async (locks) => {
    const lock = locks.lock('k', { token: 'the-secret-name' });
    assert.match(inspect(lock), /^Lock \{ keys: \[ 'k' \], state: 'free', fence: undefined \}$/);
    assert.equal(lock.token, 'the-secret-name');
  });

  check('hooks are called, and an exception of a hook does no harm', async (_, client) => {
    const told = [];
    const observer = Object.fromEntries(
      ['waited', 'granted', 'lost'].map((name) => [
        name,
        (lock, ms, outcome) => {
          told.push(outcome ? `${name} ${outcome}` : name);
          throw new Error(`${name} fails`);
        },
      ]),
    );
    const warnings = [];
    const listen = (warning) => warnings.push(warning.message);
    process.on('warning', listen);
    const locks = new Locks(client, { observer });
    const held = await locks.acquire('k', { leaseMs: 3000 });
    await assert.rejects(locks.acquire('k', { waitMs: 1000 }), NotAcquiredError);
    await server.redis.del('k');
    await until('the loss is told', () => told.includes('lost'));
    assert.deepEqual(told, ['granted', 'waited not acquired', 'lost']);
    await until('the exceptions are warnings', () => warnings.length === 3);
    process.off('warning', listen);
    assert.equal(await held.release(), false);
  });
}

test('ioredis: commandTimeout, no offline queue and few retries only have it ask again', { timeout: 60_000 }, async (t) => {
  const { Locks } = await import('../dist/ioredis.js');
  const redis = new Redis(server.port, { commandTimeout: 300, enableOfflineQueue: false, maxRetriesPerRequest: 0 });
  t.after(() => redis.disconnect());
  await new Promise((ready) => redis.once('ready', ready));
  await askedAgain(new Locks(redis));
});

test('ioredis: without an offline queue a session is had at the first try', { timeout: 60_000 }, async (t) => {
  const { Locks } = await import('../dist/ioredis.js');
  const redis = new Redis(server.port, { enableOfflineQueue: false });
  t.after(() => redis.disconnect());
  await new Promise((ready) => redis.once('ready', ready));
  await server.redis.flushall();
  const lock = new Locks(redis).lock('k', { session: true });
  assert(await lock.tryAcquire());
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

/** Runs `work` while the server is a replica without its primary, which refuses to write. */
async function duringOutage(work) {
  await server.call('REPLICAOF 127.0.0.1 1');
  try {
    return await work();
  } finally {
    await server.call('REPLICAOF NO ONE');
  }
}

/** Returns how many releases the server has refused. */
async function refusedReleases() {
  const stats = await server.redis.info('commandstats');
  return Number(/cmdstat_lock\.release:.*rejected_calls=(\d+)/i.exec(stats)?.[1] ?? 0);
}

/** Returns the holds of the key's only holder. */
async function holdsOf(key) {
  const fields = await server.redis.call('LOCK.INFO', key);
  const [holder] = fields[fields.indexOf('holders') + 1];
  return holder[holder.indexOf('holds') + 1];
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
