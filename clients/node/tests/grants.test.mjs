// Behaviours that the conformance suite can't check, because its drivers have no order for them.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { connect } from './clients.mjs';
import { startProxy } from './proxy.mjs';
import { collect, info, startServer, until } from './server.mjs';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

const waiting = (count, key = 'k') =>
  until(`${count} wait`, async () => (await info(server.redis, key)).waiters === count);
const free = (key = 'k') =>
  until('it is free', async () => {
    const { holders, waiters } = await info(server.redis, key);
    return holders + waiters === 0;
  });
const listening = () =>
  until('it listens', async () => (await server.redis.pubsub('CHANNELS')).length > 0);
const connections = async () =>
  Number(/connected_clients:(\d+)/.exec(await server.redis.info('clients'))[1]);
const times = (count, work) => Array.from({ length: count }, (_, i) => work(i));

/** Returns the error of a call. */
const failureOf = (call) =>
  call.then(
    () => assert.fail('it has not failed'),
    (error) => error,
  );

/** Checks that a waiter is woken by a message, before it would ask again. */
async function assertWoken(locks) {
  const lock = locks.lock('woken', { keepMs: 60_000 });
  const held = await lock.acquire();
  const next = lock.acquire();
  await waiting(1, 'woken');
  await listening();
  const began = performance.now();
  await held.release();
  await (await next).release();
  assert(performance.now() - began < 1500);
}

for (const kind of ['ioredis', 'node-redis']) {
  const { LockLostError, Locks, NotAcquiredError, NotHeldError, UnavailableError } = await import(
    `../dist/${kind}.js`
  );

  /** Defines a test with a client of this kind, which goes through a proxy. */
  const check = (what, work) =>
    test(`${kind}: ${what}`, { timeout: 60_000 }, async () => {
      await server.redis.flushall();
      const proxy = await startProxy(server);
      const client = await connect(kind, [`127.0.0.1:${proxy.port}`]);
      try {
        await work(new Locks(client), client, proxy);
      } finally {
        client.disconnect();
        await proxy.stop();
      }
    });

  check('a wait that is aborted is rejected with the reason itself', async (locks) => {
    const lock = locks.lock('k');
    const held = await lock.acquire();
    for (const reason of [new Error('enough'), 'no error at all']) {
      const abort = new AbortController();
      const waits = lock.acquire({ signal: abort.signal });
      await waiting(1);
      abort.abort(reason);
      assert.equal(await failureOf(waits), reason);
      await waiting(0);
    }
    const timeout = lock.acquire({ signal: AbortSignal.timeout(100) });
    assert.equal((await failureOf(timeout)).name, 'TimeoutError');
    await held.release();
    const aborted = lock.acquire({ signal: AbortSignal.abort() });
    assert.equal((await failureOf(aborted)).name, 'AbortError');
    await free();
  });

  check('at most 4 of a process ask for a key, and all are served in order', async (locks) => {
    const lock = locks.lock('k');
    const held = await lock.acquire();
    const order = [];
    const tasks = times(50, (i) => lock.using(() => order.push(i)));
    await waiting(4);
    const abort = new AbortController();
    const behind = lock.acquire({ signal: abort.signal });
    setImmediate(() => abort.abort(new Error('enough')));
    assert.equal((await failureOf(behind)).message, 'enough');
    assert.equal(await lock.acquire({ waitMs: 50 }), undefined);
    await listening();
    // The test's two, two for commands, and one for messages.
    await until('no more are open', async () => (await connections()) === 5);
    assert.equal((await info(server.redis, 'k')).waiters, 4);
    await held.release();
    await Promise.all(tasks);
    assert.deepEqual(order, [...order.keys()]);
    await free();
  });

  check('an acquire that never asked knows of the outage of those before it', async (locks) => {
    const lock = locks.lock('k', { waitMs: 600 });
    const held = await lock.acquire();
    const refused = await Promise.all(times(8, () => lock.acquire()));
    assert.deepEqual(new Set(refused), new Set([undefined]));
    await held.release();
    await server.call('REPLICAOF 127.0.0.1 1');
    const failures = await Promise.all(times(8, () => failureOf(lock.acquire())));
    await server.call('REPLICAOF NO ONE');
    for (const error of failures) assert(error instanceof UnavailableError);
  });

  check('using() returns or throws what its work does, and a loss ends it', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 900 });
    const fence = await lock.using(async (grant, signal) => {
      assert.equal(signal, grant.signal);
      const refused = lock.using(() => {}, { waitMs: 0 });
      assert((await failureOf(refused)) instanceof NotAcquiredError);
      return grant.fence;
    });
    assert(fence > 0);
    assert.equal(await lock.using((grant) => grant.release()), true);
    const lost = lock.using(async (grant, signal) => {
      await server.redis.del('k');
      await sleep(30_000, undefined, { signal });
    });
    assert((await failureOf(lost)) instanceof LockLostError);
    const unnoticed = lock.using(() => server.redis.del('k'));
    assert((await failureOf(unnoticed)) instanceof LockLostError);
    const fault = new RangeError('mine');
    const fails = lock.using(async (grant, signal) => {
      await server.redis.del('k');
      await once(signal, 'abort');
      assert(signal.reason instanceof LockLostError && grant.lost);
      throw fault;
    });
    assert.equal(await failureOf(fails), fault);
  });

  check('a grant that was released is refused', async (locks) => {
    const grant = await locks.lock('k').acquire();
    const extension = grant.extend(60_000);
    assert.equal(await grant.release(), true);
    await extension;
    await free();
    assert((await failureOf(grant.release())) instanceof NotHeldError);
    assert((await failureOf(grant.using(() => {}))) instanceof NotHeldError);
    assert.throws(() => grant.detach(), NotHeldError);
    assert.equal(await grant.extend(60_000), false);
    assert.deepEqual([grant.left(), grant.lost], [0, false]);
  });

  check('a grant is detached, and adopted by its token', async (locks, client) => {
    const grant = await locks.lock(['a', 'b'], { leaseMs: 10_000 }).acquire();
    grant.detach();
    const lost = [];
    const others = new Locks(client, { observer: { lost: (it) => lost.push(it) } });
    const adopt = () => others.adopt(grant.keys, grant.token, grant.fence, { leaseMs: 60_000 });
    const adopted = await adopt();
    assert.deepEqual([adopted.fence, adopted.lost], [grant.fence, false]);
    assert(adopted.left() > 50_000);
    assert.equal(await adopted.release(), true);
    assert.equal(await server.redis.exists('a', 'b'), 0);
    assert.equal(await adopt(), undefined);
    assert.deepEqual(lost, []);
    const session = await locks.lock('s', { session: true }).acquire();
    assert.throws(() => session.detach(), TypeError);
    await session.release();
  });

  check('once() computes once, and all others read', async (locks) => {
    let stored;
    let computed = 0;
    const compute = async () => {
      computed += 1;
      await sleep(50);
      return (stored = `result ${computed}`);
    };
    const all = times(20, () => locks.once('k', async () => stored, compute));
    assert.deepEqual(new Set(await Promise.all(all)), new Set(['result 1']));
    assert.equal(computed, 1);

    stored = undefined;
    const fault = new Error('mine');
    const fails = locks.once(
      'k',
      () => null,
      () => Promise.reject(fault),
    );
    const next = locks.once('k', () => stored, compute);
    assert.equal(await failureOf(fails), fault);
    assert.equal(await next, 'result 2');

    const held = await locks.lock('k').acquire();
    const late = locks.once('k', () => undefined, compute, { waitMs: 50 });
    assert((await failureOf(late)) instanceof NotAcquiredError);
    await held.release();
  });

  check('a grant that the program drops is released, and reported as lost', async (_, client) => {
    const lost = [];
    const warnings = [];
    const listen = ({ message }) => warnings.push(message);
    process.on('warning', listen);
    const observer = { lost: ({ keys }) => lost.push(...keys) };
    const lock = new Locks(client, { observer }).lock('dropped');
    const { signal } = await lock.acquire();
    const kept = await new Locks(client).lock('kept').acquire();
    await until('it is told', async () => {
      await collect();
      return lost.length > 0;
    });
    await free('dropped');
    assert.deepEqual([lost, signal.aborted], [['dropped'], true]);
    const warning = "a grant of [ 'dropped' ] was dropped without a release";
    await until('it is a warning', () => warnings.includes(warning));
    process.off('warning', listen);
    assert.equal(await kept.release(), true);
  });

  check('a client that is closed rejects what still waits', async (locks, client) => {
    await server.call('LOCK.ACQUIRE k other PX 60000');
    const waits = locks.lock('k').acquire();
    await waiting(1);
    client.disconnect();
    const error = await failureOf(waits);
    assert.deepEqual([error.name, error.message], ['UnavailableError', 'the client is closed']);
  });

  check('a client that was closed and opened again wakes its waiters', async (locks, client) => {
    await assertWoken(locks);
    const closed = once(client, 'end');
    await client.quit();
    await closed;
    await client.connect();
    await assertWoken(locks);
  });

  check('a session has a connection, whose end is its loss', async (locks) => {
    await locks.lock('warm').using(() => {});
    await until('those of the test before are closed', async () => (await connections()) === 4);
    const lock = locks.lock('k', { session: true, leaseMs: 60_000 });
    const grant = await lock.acquire();
    assert.equal(await connections(), 5);
    assert.equal(await grant.release(), true);
    await until('it is closed', async () => (await connections()) === 4);
    const given = await locks.lock('k').acquire();
    given.detach();
    const adopt = () => locks.adopt('k', given.token, given.fence, { session: true });
    const adopted = await adopt();
    assert.equal(await connections(), 5);
    assert.equal(await adopted.release(), true);
    await until('it is closed, too', async () => (await connections()) === 4);
    assert.equal(await adopt(), undefined);
    assert.equal(await connections(), 4);
    const lost = await lock.acquire();
    const fields = await server.redis.call('LOCK.INFO', 'k');
    const [holder] = fields[fields.indexOf('holders') + 1];
    await server.redis.client('KILL', 'ID', holder[holder.indexOf('client-id') + 1]);
    await until('it is told', () => lost.signal.aborted);
    assert.equal(await lost.release(), false);
  });

  check('a connection that is lost before its tie costs the token', async (_, client, proxy) => {
    const locks = new Locks(client, { commandTimeoutMs: 20_000 });
    let lost = '';
    proxy.request = (text, near) => {
      if (lost || !/session/i.test(text)) return undefined;
      lost = text;
      near.destroy();
      return null;
    };
    const grant = await locks.lock('k', { session: true }).acquire();
    assert(lost && !lost.includes(grant.token));
    assert.equal(await grant.owned(), true);
    assert.equal(await grant.release(), true);
    await free();
  });

  check('a late subscription is no outage', async (_, client, proxy) => {
    const outages = [];
    const observer = { unavailable: ({ message }) => outages.push(message) };
    const lock = new Locks(client, { observer }).lock('k', { leaseMs: 300 });
    await server.call('LOCK.ACQUIRE k other PX 60000');
    proxy.request = (text) => (/subscribe/i.test(text) ? null : undefined);
    const refused = times(8, () => lock.acquire({ waitMs: 1500 }));
    assert.deepEqual(new Set(await Promise.all(refused)), new Set([undefined]));
    const waits = lock.acquire();
    const before = proxy.count('lock.queue');
    await until('it asks again', () => proxy.count('lock.queue') > before + 3);
    await server.call('LOCK.RELEASE k other');
    await (await waits).release();
    assert.deepEqual(outages, []);
  });

  check('a connection for messages that died silently is replaced', async (locks, _, proxy) => {
    await server.call('LOCK.ACQUIRE k other PX 60000');
    const waits = locks.lock('k', { keepMs: 60_000 }).acquire();
    await listening();
    const before = proxy.count('subscribe');
    const dead = new Set();
    proxy.request = (text, near) => {
      if (/ping/i.test(text)) dead.add(near);
      return dead.has(near) ? null : undefined;
    };
    await until('it subscribes again', () => proxy.count('subscribe') > before);
    await server.call('LOCK.RELEASE k other');
    await (await waits).release();
  });

  check('a dead connection is replaced, even if calls are aborted', async (locks, _, proxy) => {
    let dead;
    proxy.request = (text, near) => {
      if (/lock.queue/i.test(text)) dead ??= near;
      return dead === near ? null : undefined;
    };
    const acquire = () => locks.lock('k').acquire({ signal: AbortSignal.timeout(200) });
    const grant = await until('it is granted', () => acquire().catch(() => undefined));
    await grant.release();
  });

  check('a time that is too long for a timer is none', async (locks) => {
    const options = { leaseMs: 2 ** 40, waitMs: 2 ** 40, maxHoldMs: Infinity };
    const grant = await locks.lock('k', options).acquire();
    await sleep(50);
    assert.equal(grant.lost, false);
    assert.equal(await grant.release(), true);
  });

  check('wrong arguments are refused by name', async (locks, client) => {
    const lock = locks.lock('k');
    const other = await connect(kind === 'ioredis' ? 'node-redis' : 'ioredis', [server.address]);
    const make = (options) => locks.lock('k', options);
    const cases = [
      ...['token', 'reentrant', 'lease'].map((name) => [() => make({ [name]: 1 }), `${name}: `]),
      [() => make({ onLost: 'no' }), 'onLost: '],
      ...[2500, null, 'k'].flatMap((options) => [
        [() => make(options), 'options: '],
        [() => lock.acquire(options), 'options: '],
        [() => lock.tryAcquire(options), 'options: '],
        [() => lock.using(() => {}, options), 'options: '],
      ]),
      [() => lock.acquire({ signal: 5 }), 'signal: '],
      [() => lock.using({}), 'work: '],
      [() => locks.once('k', () => 1), 'compute: '],
      ...['*', '', 5].map((token) => [() => locks.adopt('k', token, 1), 'token: ']),
      [() => locks.adopt('k', 't', 'f'), 'fence: '],
      ...[null, 5].map((observer) => [() => new Locks(client, { observer }), 'observer: ']),
      ...[other, {}, undefined].map((wrong) => [() => new Locks(wrong), 'client: ']),
    ];
    for (const [call, name] of cases)
      await assert.rejects(
        async () => call(),
        ({ message }) => message.startsWith(name),
        name,
      );
    other.disconnect();
  });

  check('hooks are called, and an exception of a hook is only a warning', async (_, client) => {
    const told = [];
    const hook = (name) => (it, ms, outcome) => {
      told.push(outcome ? `${name} ${outcome}` : name);
      throw new Error(`${name} fails`);
    };
    const names = ['waited', 'granted', 'lost'];
    const observer = Object.fromEntries(names.map((name) => [name, hook(name)]));
    const warnings = [];
    const listen = ({ message }) => warnings.push(message);
    process.on('warning', listen);
    const lock = new Locks(client, { observer }).lock('k', { leaseMs: 3000 });
    const held = await lock.acquire();
    assert.equal(await lock.acquire({ waitMs: 1000 }), undefined);
    await server.redis.del('k');
    await until('the loss is told', () => told.includes('lost'));
    assert.deepEqual(told, ['granted', 'waited not acquired', 'lost']);
    const fails = ({ length }) => length === 3;
    await until('the exceptions are warnings', () =>
      fails(warnings.filter((it) => it.endsWith(' fails'))),
    );
    process.off('warning', listen);
    assert.equal(await held.release(), false);
  });

  /** Settings of a program's client that must not end its locks. */
  const settings = {
    ioredis: { commandTimeout: 300, enableOfflineQueue: false, maxRetriesPerRequest: 0 },
    'node-redis': { disableOfflineQueue: true },
  };
  test(`${kind}: the client's settings don't end its locks`, { timeout: 60_000 }, async (t) => {
    const client = await connect(kind, [server.address], false, settings[kind]);
    t.after(() => client.disconnect());
    await server.redis.flushall();
    await server.call('LOCK.ACQUIRE taken other PX 60000');
    const locks = new Locks(client);
    const waits = locks.lock('taken', { keepMs: 6000 }).acquire();
    const held = await locks.lock('held', { leaseMs: 6000 }).acquire();
    await waiting(1, 'taken');
    await server.call('CLIENT PAUSE 1000 ALL');
    await server.call('CLIENT KILL TYPE normal');
    await server.call('LOCK.RELEASE taken other');
    assert.equal(await (await waits).release(), true);
    await sleep(2000);
    assert.equal(held.lost, false);
    assert.equal(await held.release(), true);
  });
}
