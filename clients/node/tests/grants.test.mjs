// Behaviours that the conformance suite can't check, because its drivers have no order for them.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, test } from 'node:test';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { connect } from './clients.mjs';
import { startProxy } from './proxy.mjs';
import { info, startServer, until } from './server.mjs';

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

/** Returns the error of a call. */
const failureOf = (call) =>
  call.then(
    () => assert.fail('it has not failed'),
    (error) => error,
  );

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc');

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

  /** Defines a test with a client of this kind. */
  const check = (what, work) =>
    test(`${kind}: ${what}`, { timeout: 60_000 }, async () => {
      const client = await connect(kind, [server.address]);
      try {
        await server.redis.flushall();
        await work(new Locks(client), client);
      } finally {
        client.disconnect();
      }
    });

  /** Defines a test with a client of this kind that goes through a proxy. */
  const checkThroughProxy = (what, work) =>
    test(`${kind}: ${what}`, { timeout: 60_000 }, async () => {
      await server.redis.flushall();
      const proxy = await startProxy(server);
      const client = await connect(kind, [`127.0.0.1:${proxy.port}`]);
      try {
        await work(proxy, client);
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
    await waiting(0);
    await held.release();
    const aborted = lock.acquire({ signal: AbortSignal.abort() });
    assert.equal((await failureOf(aborted)).name, 'AbortError');
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('an abort at the moment of a failure is rejected with the reason', async (locks, client) => {
    const abort = new AbortController();
    const reason = new Error('enough');
    const duplicate = client.duplicate.bind(client);
    client.duplicate = (overrides) => {
      const own = duplicate(overrides);
      const send = own.sendCommand.bind(own);
      own.sendCommand = (...words) => {
        const sent = send(...words);
        const failed = (error) => /^WRONGTYPE/.test(error.message) && abort.abort(reason);
        // The library sees the failure first.
        queueMicrotask(() => sent.catch(failed));
        return sent;
      };
      return own;
    };
    await server.redis.set('k', 'no lock');
    assert.equal(await failureOf(locks.lock('k').acquire({ signal: abort.signal })), reason);
  });

  check('an abort of an acquire that waits for its turn in the process', async (locks) => {
    const lock = locks.lock('k');
    const held = await lock.acquire();
    const abort = new AbortController();
    const asking = Array.from({ length: 4 }, () => lock.acquire());
    await waiting(4);
    const behind = lock.acquire({ signal: abort.signal });
    const last = lock.acquire();
    setImmediate(() => abort.abort(new Error('enough')));
    assert.equal((await failureOf(behind)).message, 'enough');
    await held.release();
    for (const each of [...asking, last]) await (await each).release();
    await free();
  });

  check('using() returns what the work returns, and throws what it throws', async (locks) => {
    const lock = locks.lock('k');
    const fence = await lock.using(async (grant, signal) => {
      assert.equal((await info(server.redis, 'k')).holders, 1);
      assert.equal(signal, grant.signal);
      const refused = lock.using(() => {}, { waitMs: 0 });
      assert((await failureOf(refused)) instanceof NotAcquiredError);
      return grant.fence;
    });
    assert(fence > 0);
    const fault = new RangeError('mine');
    const fails = lock.using(() => {
      throw fault;
    });
    assert.equal(await failureOf(fails), fault);
    assert.equal(await lock.using((grant) => grant.release()), true);
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('a loss ends the block of using(), whose own error comes first', async (locks) => {
    const lock = locks.lock('k', { leaseMs: 900 });
    const lost = lock.using(async (grant, signal) => {
      await server.redis.del('k');
      await sleep(30_000, undefined, { signal });
    });
    assert((await failureOf(lost)) instanceof LockLostError);
    const unnoticed = lock.using(() => server.redis.del('k'));
    assert((await failureOf(unnoticed)) instanceof LockLostError);
    const fault = new Error('mine');
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
    assert.equal(await grant.release(), true);
    assert((await failureOf(grant.release())) instanceof NotHeldError);
    assert((await failureOf(grant.using(() => {}))) instanceof NotHeldError);
    assert.throws(() => grant.detach(), NotHeldError);
    assert.equal(await grant.extend(60_000), false);
    assert.deepEqual([grant.left(), grant.lost], [0, false]);
  });

  check('a release during an extension releases', async (locks) => {
    const grant = await locks.lock('k').acquire();
    const extension = grant.extend(60_000);
    assert.equal(await grant.release(), true);
    await extension;
    await free();
  });

  check('a grant is detached, and adopted by its token', async (locks, client) => {
    const grant = await locks.lock(['a', 'b'], { leaseMs: 10_000 }).acquire();
    grant.detach();
    const others = new Locks(client);
    const adopted = await others.adopt(grant.keys, grant.token, grant.fence, { leaseMs: 60_000 });
    assert.deepEqual([adopted.fence, adopted.lost], [grant.fence, false]);
    assert(adopted.left() > 50_000);
    assert.equal(await adopted.release(), true);
    assert.equal(await server.redis.exists('a', 'b'), 0);
    assert.equal(await others.adopt(grant.keys, grant.token, grant.fence), undefined);
    assert.deepEqual(await info(server.redis, 'a'), { holders: 0, waiters: 0 });
    for (const [token, fence] of [
      ['*', 1],
      ['', 1],
      [5, 1],
      ['t', 'f'],
    ]) {
      await assert.rejects(locks.adopt('k', token, fence), /^(Type|Range)Error: (token|fence): /);
    }
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
    const all = Array.from({ length: 20 }, () => locks.once('k', async () => stored, compute));
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
    const lock = new Locks(client, { observer }).lock('k', { leaseMs: 3000 });
    const { signal } = await lock.acquire();
    const kept = await new Locks(client).lock('kept', { leaseMs: 3000 }).acquire();
    // The lease is renewed, so the lock doesn't end by itself.
    await until('it is told', () => {
      collect();
      return lost.length > 0;
    });
    await free();
    assert.deepEqual(lost, ['k']);
    assert.equal(signal.aborted, true);
    await until('it is a warning', () => warnings.length > 0);
    assert.deepEqual(warnings, ["a grant of [ 'k' ] was dropped without a release"]);
    process.off('warning', listen);
    assert.equal(await kept.release(), true);
  });

  check('at most 4 of a process ask for a key, and all are served in order', async (locks) => {
    const lock = locks.lock('k');
    const held = await lock.acquire();
    const order = [];
    const task = (_, i) => lock.using(() => order.push(i));
    const tasks = Array.from({ length: 50 }, task);
    await waiting(4);
    await listening();
    // The test's two, two for commands, and one for messages.
    await until('no more are open', async () => (await connections()) === 5);
    assert.equal((await info(server.redis, 'k')).waiters, 4);
    await held.release();
    await Promise.all(tasks);
    assert.deepEqual(order, [...order.keys()]);
  });

  check('an acquire that never asked knows of the outage of those before it', async (locks) => {
    const lock = locks.lock('k', { waitMs: 600 });
    const held = await lock.acquire();
    const refused = await Promise.all(Array.from({ length: 8 }, () => lock.acquire()));
    assert.deepEqual(new Set(refused), new Set([undefined]));
    await held.release();
    await server.call('REPLICAOF 127.0.0.1 1');
    const failures = await Promise.all(Array.from({ length: 8 }, () => failureOf(lock.acquire())));
    await server.call('REPLICAOF NO ONE');
    for (const error of failures) assert(error instanceof UnavailableError);
  });

  check('a client that is closed rejects what still waits', async (locks) => {
    const held = await locks.lock('k').acquire();
    const client = await connect(kind, [server.address]);
    const waits = new Locks(client).lock('k').acquire();
    await waiting(1);
    client.disconnect();
    const error = await failureOf(waits);
    assert.deepEqual([error.name, error.message], ['UnavailableError', 'the client is closed']);
    await held.release();
  });

  check('a client that was closed and opened again wakes its waiters', async (locks, client) => {
    await assertWoken(locks);
    const closed = once(client, 'end');
    await client.quit();
    await closed;
    await client.connect();
    await assertWoken(locks);
  });

  check('a message of another client does no harm', async (locks) => {
    const lock = locks.lock('k');
    const held = await lock.acquire();
    const waits = lock.acquire();
    await listening();
    const [channel] = await server.redis.pubsub('CHANNELS', 'redis-lock:*');
    for (const message of ['error', '1', '']) await server.redis.publish(channel, message);
    await held.release();
    await (await waits).release();
  });

  check('a session has a connection, which ends with the grant', async (locks) => {
    await locks.lock('warm').using(() => {});
    await until('those of the test before are closed', async () => (await connections()) === 4);
    const grant = await locks.lock('k', { session: true, leaseMs: 60_000 }).acquire();
    assert.equal(await connections(), 5);
    assert.equal(await grant.release(), true);
    await until('it is closed', async () => (await connections()) === 4);
  });

  check('a session whose connection the server closes is lost at once', async (locks) => {
    const grant = await locks.lock('k', { session: true, leaseMs: 60_000 }).acquire();
    const fields = await server.redis.call('LOCK.INFO', 'k');
    const [holder] = fields[fields.indexOf('holders') + 1];
    await server.redis.client('KILL', 'ID', holder[holder.indexOf('client-id') + 1]);
    await until('it is told', () => grant.signal.aborted);
    await assert.rejects(grant[Symbol.asyncDispose](), LockLostError);
  });

  checkThroughProxy('a connection lost before the tie drops no grant', async (proxy, client) => {
    const locks = new Locks(client, { commandTimeoutMs: 20_000 });
    const lock = locks.lock('k', { session: true });
    const heldBack = [];
    let isBroken = false;
    proxy.request = (text, near, far) => {
      if (!/lock\.extend/i.test(text)) return undefined;
      if (isBroken) heldBack.push(() => far.write(text));
      else near.destroy();
      isBroken = true;
      return null;
    };
    const acquires = lock.acquire();
    await until('it is tied again', () => heldBack.length > 0);
    for (let i = 0; i < 5; i += 1) {
      collect();
      await immediate();
    }
    proxy.request = () => undefined;
    heldBack.forEach((send) => send());
    const grant = await acquires;
    assert.equal(await grant.owned(), true);
    assert.equal(await grant.release(), true);
  });

  checkThroughProxy('a loss before the program has the grant is not told', async (proxy, client) => {
    const told = [];
    const onLost = () => told.push('onLost');
    const locks = new Locks(client, { observer: { lost: () => told.push('lost') } });
    assert.equal(await locks.adopt('k', 'ended', 1, { onLost }), undefined);
    proxy.request = (text) => (/lock\.extend/i.test(text) ? ':0\r\n' : undefined);
    const ties = locks.lock('k', { session: true, onLost }).acquire();
    assert((await failureOf(ties)) instanceof LockLostError);
    assert.deepEqual(told, []);
  });

  checkThroughProxy('a waiter with replicas keeps no failed connection', async (proxy, client) => {
    const before = await connections();
    const abort = new AbortController();
    proxy.request = (text) => (/lock\./i.test(text) ? '-READONLY a replica\r\n' : undefined);
    const waits = new Locks(client).lock('k', { replicas: 1 }).acquire({ signal: abort.signal });
    await until('it has tried', () => proxy.count('lock.') >= 4);
    await until('the failed ones are closed', async () => (await connections()) <= before + 1);
    abort.abort();
    assert.equal((await failureOf(waits)).name, 'AbortError');
  });

  checkThroughProxy('a late subscription is no outage', async (proxy, client) => {
    const outages = [];
    const observer = { unavailable: ({ message }) => outages.push(message) };
    const lock = new Locks(client, { observer }).lock('k', { leaseMs: 300 });
    await server.call('LOCK.ACQUIRE k other PX 60000');
    proxy.request = (text) => (/subscribe/i.test(text) ? null : undefined);
    const refused = Array.from({ length: 8 }, () => lock.acquire({ waitMs: 1500 }));
    assert.deepEqual(new Set(await Promise.all(refused)), new Set([undefined]));
    const waits = lock.acquire();
    const before = proxy.count('lock.queue');
    await until('it asks again', () => proxy.count('lock.queue') > before + 3);
    await server.call('LOCK.RELEASE k other');
    await (await waits).release();
    assert.deepEqual(outages, []);
  });

  check('a connection for messages that died silently is replaced', async (locks) => {
    const proxy = await startProxy(server);
    const client = await connect(kind, [`127.0.0.1:${proxy.port}`]);
    const lock = new Locks(client).lock('k', { keepMs: 60_000 });
    const other = locks.lock('k');
    const held = await other.acquire();
    const waits = lock.acquire();
    await listening();
    const count = () => proxy.count('subscribe');
    const before = count();
    const dead = new Set();
    proxy.request = (text, near) => {
      if (/ping/i.test(text)) dead.add(near);
      return dead.has(near) ? null : undefined;
    };
    await until('it subscribes again', () => count() > before);
    await held.release();
    await (await waits).release();
    client.disconnect();
    await proxy.stop();
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
    for (const name of ['token', 'reentrant', 'lease']) {
      assert.throws(() => locks.lock('k', { [name]: 1 }), new RegExp(`^TypeError: ${name}: `));
    }
    assert.throws(() => locks.lock('k', { onLost: 'no' }), /^TypeError: onLost: /);
    for (const options of [2500, null, 'k']) {
      await assert.rejects(lock.acquire(options), /^TypeError: options: /);
      await assert.rejects(lock.tryAcquire(options), /^TypeError: options: /);
      await assert.rejects(
        lock.using(() => {}, options),
        /^TypeError: options: /,
      );
      assert.throws(() => locks.lock('k', options), /^TypeError: options: /);
    }
    await assert.rejects(lock.acquire({ signal: 5 }), /^TypeError: signal: /);
    await assert.rejects(lock.using({}), /^TypeError: work: /);
    await assert.rejects(
      locks.once('k', () => 1),
      /^TypeError: compute: /,
    );
    for (const observer of [null, 5]) {
      assert.throws(() => new Locks(client, { observer }), /^TypeError: observer: /);
    }
    const other = await connect(kind === 'ioredis' ? 'node-redis' : 'ioredis', [server.address]);
    for (const wrong of [other, {}, undefined]) {
      assert.throws(() => new Locks(wrong), /^TypeError: client: /);
    }
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
    const listen = (warning) => warnings.push(warning.message);
    process.on('warning', listen);
    const lock = new Locks(client, { observer }).lock('k', { leaseMs: 3000 });
    const held = await lock.acquire();
    assert.equal(await lock.acquire({ waitMs: 1000 }), undefined);
    await server.redis.del('k');
    await until('the loss is told', () => told.includes('lost'));
    assert.deepEqual(told, ['granted', 'waited not acquired', 'lost']);
    await until('the exceptions are warnings', () => warnings.length === 3);
    process.off('warning', listen);
    assert.equal(await held.release(), false);
  });

  check('the text of a grant has its state', async (locks) => {
    const grant = await locks.lock('k').acquire();
    const text = `Grant { keys: [ 'k' ], state: 'held', fence: ${grant.fence} }`;
    assert.equal(inspect(grant), text);
    await grant.release();
    assert.equal(JSON.parse(JSON.stringify(grant)).state, 'released');
  });
}

/** Settings of a program's client that must not end its locks. */
const settings = {
  ioredis: [{ commandTimeout: 300, enableOfflineQueue: false, maxRetriesPerRequest: 0 }],
  'node-redis': [{ disableOfflineQueue: true }],
};
for (const [kind, all] of Object.entries(settings)) {
  for (const each of all) {
    const what = JSON.stringify(each);
    test(`${kind}: a client with ${what} keeps its locks`, { timeout: 60_000 }, async (t) => {
      const { Locks } = await import(`../dist/${kind}.js`);
      const client = await connect(kind, [server.address], false, each);
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
}
