// Behaviours that the conformance suite can't check, because its drivers have no order for them.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';

import { LockLostError, NotAcquiredError, NotHeldError, UnavailableError } from '../dist/index.js';
import { connect } from './clients.mjs';
import { checkEach, collect, failureOf, KINDS, startServer, until, warnings } from './server.mjs';

const server = await startServer();
const check = (what, work) => checkEach(server, what, work);
const connections = (count) =>
  until(`${count} are open`, async () => (await server.connections()) === count);
const otherHolds = (key = 'k') => server.call(`LOCK.ACQUIRE ${key} other PX 60000`);
const otherReleases = (key = 'k') => server.call(`LOCK.RELEASE ${key} other`);
const listening = () =>
  until('it listens', async () => (await server.call('PUBSUB CHANNELS')).length > 0);
const times = (count, work) => Array.from({ length: count }, (_, i) => work(i));

check('a wait that is aborted is rejected with the reason itself', async ({ locks }) => {
  await otherHolds();
  const failsBy = async (signal) => failureOf(locks.lock('k').acquire({ signal }));
  const abort = new AbortController();
  const failure = failsBy(abort.signal);
  await server.untilWaiting(1);
  abort.abort('no error at all');
  assert.equal(await failure, 'no error at all');
  await server.untilWaiting(0);
  assert.equal((await failsBy(AbortSignal.timeout(100))).name, 'TimeoutError');
  await otherReleases();
  assert.equal((await failsBy(AbortSignal.abort())).name, 'AbortError');
  await server.untilFree();
});

check('at most 4 of a process ask for a key, and all are served in order', async ({ locks }) => {
  const lock = locks.lock('k');
  const held = await lock.acquire();
  const order = [];
  const tasks = times(50, (i) => lock.using(() => order.push(i)));
  await server.untilWaiting(4);
  const abort = new AbortController();
  const behind = lock.acquire({ signal: abort.signal });
  setImmediate(() => abort.abort(new Error('enough')));
  assert.equal((await failureOf(behind)).message, 'enough');
  assert.equal(await lock.acquire({ waitMs: 50 }), undefined);
  await listening();
  // The test's two, two for commands, and one for messages.
  await connections(5);
  assert.equal((await server.info('k')).waiters, 4);
  await held.release();
  await Promise.all(tasks);
  assert.deepEqual(order, [...order.keys()]);
  await server.untilFree();
});

check('an acquire that never asked knows of the outage of those before it', async ({ locks }) => {
  const lock = locks.lock('k', { waitMs: 600 });
  await otherHolds();
  const refused = await Promise.all(times(8, () => lock.acquire()));
  assert.deepEqual(new Set(refused), new Set([undefined]));
  await otherReleases();
  await server.call('REPLICAOF 127.0.0.1 1');
  const failures = await Promise.all(times(8, () => failureOf(lock.acquire())));
  await server.call('REPLICAOF NO ONE');
  for (const error of failures) assert(error instanceof UnavailableError);
});

check('using() returns what its work does, or tells of its loss', async ({ locks }) => {
  const lock = locks.lock('k');
  const fence = await lock.using(async (grant, signal) => {
    assert.equal(signal, grant.signal);
    const refused = lock.using(() => {}, { waitMs: 0 });
    assert((await failureOf(refused)) instanceof NotAcquiredError);
    return grant.fence;
  });
  assert(fence > 0);
  assert.equal(await lock.using((grant) => grant.release()), true);
  const unnoticed = lock.using(() => server.redis.del('k'));
  assert((await failureOf(unnoticed)) instanceof LockLostError);
});

check('`await using` releases, and tells of a loss', async ({ locks }) => {
  const lock = locks.lock('k');
  const dispose = async (grant) => grant[Symbol.asyncDispose]();
  const grant = await lock.acquire();
  await dispose(grant);
  assert.deepEqual(await server.info('k'), { holders: 0, waiters: 0 });
  await dispose(grant);
  const lost = await lock.acquire();
  await server.redis.del('k');
  assert((await failureOf(dispose(lost))) instanceof LockLostError);
});

check('a grant that was released is refused', async ({ locks }) => {
  const grant = await locks.lock('k').acquire();
  const extension = grant.extend(60_000);
  assert.equal(await grant.release(), true);
  await extension;
  await server.untilFree();
  assert((await failureOf(grant.using(() => {}))) instanceof NotHeldError);
  assert.throws(() => grant.detach(), NotHeldError);
  assert.equal(await grant.extend(60_000), false);
  assert.deepEqual([grant.left(), grant.lost], [0, false]);
});

check('a grant is detached, and adopted by its token', async ({ locks, locksWith }) => {
  const grant = await locks.lock(['a', 'b'], { leaseMs: 10_000 }).acquire();
  grant.detach();
  const lost = [];
  const others = locksWith({ observer: { lost: (it) => lost.push(it) } });
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

check('once() computes once, and all others read', async ({ locks }) => {
  let stored;
  let computed = 0;
  const read = async () => stored;
  const compute = async () => {
    computed += 1;
    await sleep(50);
    return (stored = `result ${computed}`);
  };
  const all = times(20, () => locks.once('k', read, compute));
  assert.deepEqual(new Set(await Promise.all(all)), new Set(['result 1']));

  stored = null;
  const fault = new Error('mine');
  const fails = locks.once('k', read, () => Promise.reject(fault));
  const next = locks.once('k', read, compute);
  assert.equal(await failureOf(fails), fault);
  assert.equal(await next, 'result 2');

  stored = undefined;
  await otherHolds();
  const late = locks.once('k', read, compute, { waitMs: 50 });
  assert((await failureOf(late)) instanceof NotAcquiredError);
});

check('a dropped grant is released, and reported as lost', async ({ t, locks, locksWith }) => {
  const lost = [];
  const warned = warnings(t);
  const observer = { lost: ({ keys }) => lost.push(...keys) };
  const { signal } = await locksWith({ observer }).lock('dropped').acquire();
  const kept = await locks.lock('kept').acquire();
  await until('it is told', () => collect().then(() => lost.length > 0));
  await server.untilFree('dropped');
  assert.deepEqual([lost, signal.aborted], [['dropped'], true]);
  const warning = "a grant of [ 'dropped' ] was dropped without a release";
  await until('it is a warning', () => warned.includes(warning));
  assert.equal(await kept.release(), true);
});

check('a client that is closed rejects what still waits', async ({ locks, client }) => {
  // Its place in the queue stays for a while.
  await otherHolds('closed');
  const waits = locks.lock('closed').acquire();
  await server.untilWaiting(1, 'closed');
  client.disconnect();
  const error = await failureOf(waits);
  assert.deepEqual([error.name, error.message], ['UnavailableError', 'the client is closed']);
});

check('a client that was closed and opened again wakes its waiters', async ({ locks, client }) => {
  const lock = locks.lock('k', { keepMs: 60_000 });
  for (const isLast of [false, true]) {
    await otherHolds();
    const next = lock.acquire();
    await server.untilWaiting(1);
    await listening();
    const began = performance.now();
    await otherReleases();
    await (await next).release();
    assert(performance.now() - began < 1500, 'it was woken by a message');
    if (isLast) return;
    const closed = once(client, 'end');
    await client.quit();
    await closed;
    await client.connect();
  }
});

check('a session has a connection, whose end is its loss', async ({ locks }) => {
  await locks.lock('warm').using(() => {});
  // Those of the test before are closed.
  await connections(4);
  const lock = locks.lock('k', { session: true, leaseMs: 60_000 });
  const acquire = () => lock.acquire();
  const given = await locks.lock('k').acquire();
  given.detach();
  const adopt = () => locks.adopt('k', given.token, given.fence, { session: true });
  for (const get of [adopt, acquire]) {
    const grant = await get();
    assert.equal(await server.connections(), 5);
    assert.equal(await grant.release(), true);
    await connections(4);
  }
  assert.equal(await adopt(), undefined);
  assert.equal(await server.connections(), 4);
  const lost = await lock.acquire();
  const fields = await server.call('LOCK.INFO k');
  const [holder] = fields[fields.indexOf('holders') + 1];
  await server.redis.client('KILL', 'ID', holder[holder.indexOf('client-id') + 1]);
  await until('it is told', () => lost.signal.aborted);
  assert.equal(await lost.release(), false);
});

check('a connection that is lost before its tie costs the token', async ({ locksWith, proxy }) => {
  const locks = locksWith({ commandTimeoutMs: 20_000 });
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
  await server.untilFree();
});

check('a late acquire of a released grant is turned away', async ({ locks, proxy }) => {
  let late;
  proxy.request = (text, near) => {
    if (late || !/lock.queue/i.test(text)) return undefined;
    late = text;
    near.destroy();
    return null;
  };
  const grant = await locks.lock('k').acquire();
  assert.equal(await grant.release(), true);
  const words = late.split('\r\n').filter((_, i) => i > 0 && i % 2 === 0);
  assert.match((await failureOf(server.redis.call(...words))).message, /^LEFT/);
  await server.untilFree();
});

check('a late subscription is no outage', async ({ locksWith, proxy }) => {
  const outages = [];
  const observer = { unavailable: ({ message }) => outages.push(message) };
  const lock = locksWith({ observer }).lock('k', { leaseMs: 300 });
  await otherHolds();
  proxy.request = (text) => (/subscribe/i.test(text) ? null : undefined);
  const refused = times(8, () => lock.acquire({ waitMs: 1500 }));
  assert.deepEqual(new Set(await Promise.all(refused)), new Set([undefined]));
  const waits = lock.acquire();
  const before = proxy.count('lock.queue');
  await until('it asks again', () => proxy.count('lock.queue') > before + 3);
  await otherReleases();
  await (await waits).release();
  assert.deepEqual(outages, []);
});

check('a connection for messages that died silently is replaced', async ({ locks, proxy }) => {
  await otherHolds();
  const waits = locks.lock('k', { keepMs: 60_000 }).acquire();
  await listening();
  const before = proxy.count('subscribe');
  const dead = new Set();
  proxy.request = (text, near) => {
    if (/ping/i.test(text)) dead.add(near);
    return dead.has(near) ? null : undefined;
  };
  await until('it subscribes again', () => proxy.count('subscribe') > before);
  await otherReleases();
  await (await waits).release();
});

check('a dead connection is replaced, even if calls are aborted', async ({ locks, proxy }) => {
  let dead;
  proxy.request = (text, near) => {
    if (/lock.queue/i.test(text)) dead ??= near;
    return dead === near ? null : undefined;
  };
  const acquire = () => locks.lock('k').acquire({ signal: AbortSignal.timeout(200) });
  const grant = await until('it is granted', () => acquire().catch(() => undefined));
  await grant.release();
});

check('wrong arguments are refused by name', async ({ kind, client, Locks, locks }) => {
  // A time that is too long for a timer is right.
  const options = { leaseMs: 2 ** 40, waitMs: 2 ** 40, maxHoldMs: Infinity };
  const grant = await locks.lock('k', options).acquire();
  await sleep(50);
  assert.equal(grant.lost, false);
  assert.equal(await grant.release(), true);

  const lock = locks.lock('k');
  const other = await connect(KINDS.find((it) => it !== kind), [server.address]);
  const make = (given) => locks.lock('k', given);
  const cases = {
    onLost: [() => make({ onLost: 'no' })],
    marginMs: [() => make({ marginMs: 30_000 })],
    options: [2500, null, 'k'].flatMap((given) => [
      () => make(given),
      () => lock.acquire(given),
      () => lock.tryAcquire(given),
      () => lock.using(() => {}, given),
    ]),
    signal: [() => lock.acquire({ signal: 5 })],
    work: [() => lock.using({})],
    compute: [() => locks.once('k', () => 1)],
    token: ['*', '', 5].map((token) => () => locks.adopt('k', token, 1)),
    fence: [() => locks.adopt('k', 't', 'f')],
    observer: [null, 5].map((observer) => () => new Locks(client, { observer })),
    client: [other, {}, undefined].map((wrong) => () => new Locks(wrong)),
  };
  for (const name of ['token', 'reentrant', 'lease'])
    (cases[name] ??= []).push(() => make({ [name]: 1 }));
  for (const [name, calls] of Object.entries(cases))
    for (const call of calls) {
      const isNamed = ({ message }) => message.startsWith(`${name}: `);
      await assert.rejects(async () => call(), isNamed, `${name} ${call}`);
    }
  other.disconnect();
});

check('an exception of a hook is only a warning', async ({ t, locksWith }) => {
  const fails = (name) => () => {
    throw new Error(`${name} fails`);
  };
  const names = ['waited', 'granted', 'lost'];
  const observer = Object.fromEntries(names.map((name) => [name, fails(name)]));
  const warned = warnings(t);
  const lock = locksWith({ observer }).lock('k', { leaseMs: 3000 });
  const held = await lock.acquire();
  assert.equal(await lock.acquire({ waitMs: 1000 }), undefined);
  await server.redis.del('k');
  await until('all are warnings', () => names.every((it) => warned.includes(`${it} fails`)));
  assert.equal(await held.release(), false);
});

/** Settings of a program's client that must not end its locks. */
const settings = {
  ioredis: { commandTimeout: 300, enableOfflineQueue: false, maxRetriesPerRequest: 0 },
  'node-redis': { disableOfflineQueue: true },
};
check("the client's settings don't end its locks", async ({ kind, Locks }) => {
  const client = await connect(kind, [server.address], false, settings[kind]);
  await otherHolds('taken');
  const locks = new Locks(client);
  const waits = locks.lock('taken', { keepMs: 6000 }).acquire();
  const held = await locks.lock('held', { leaseMs: 6000 }).acquire();
  await server.untilWaiting(1, 'taken');
  await server.call('CLIENT PAUSE 1000 ALL');
  await server.call('CLIENT KILL TYPE normal');
  await otherReleases('taken');
  assert.equal(await (await waits).release(), true);
  await sleep(2000);
  assert.equal(held.lost, false);
  assert.equal(await held.release(), true);
  client.disconnect();
});
