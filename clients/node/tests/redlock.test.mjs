// The interface of npm's redlock 5, with the module's commands.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { inspect } from 'node:util';

import OldRedlock from 'redlock';

import Redlock, { ExecutionError, Lock, ResourceLockedError } from '../dist/redlock.mjs';
import { connect } from './clients.mjs';
import { packageFolder, project } from './package.mjs';
import { checkEach, collect, failureOf, startServer, until } from './server.mjs';

/**
 * Longest time for which a call may outlive its limit here, because other tests run at the same
 * time.
 */
const MARGIN_MS = 1000;
const NO_QUORUM = 'The operation was unable to achieve a quorum during its retry window';
const ONCE = { retryCount: 0 };

const server = await startServer();
const check = (what, work) =>
  checkEach(server, what, ({ client, proxy }) => work(new Redlock([client]), client, proxy));
const leaseOf = async (key, lock) => Number(await server.redis.call('LOCK.CHECK', key, lock.value));

/** Returns the error of a call, which votes for its cause in each attempt. */
async function attemptsFail(call) {
  const error = await failureOf(call);
  assert(error instanceof ExecutionError, inspect(error));
  for (const { membershipSize, votesFor, votesAgainst } of await Promise.all(error.attempts)) {
    assert.deepEqual([membershipSize, votesFor.size], [1, 0]);
    assert.deepEqual([...votesAgainst.values()], [error.cause]);
  }
  return error;
}

/** Checks that a call fails because another owner has the resource. Returns the cause. */
async function assertLocked(call, attempts) {
  const error = await attemptsFail(call);
  assert.equal(error.message, `${NO_QUORUM}.`);
  assert(error.cause instanceof ResourceLockedError);
  if (attempts !== undefined) assert.equal(error.attempts.length, attempts);
  return error.cause;
}

/** Checks that a call fails after 3 retries, which take so long. */
async function assertGivesUp(redlock, settings, leastMs, mostMs) {
  const began = performance.now();
  const cause = await assertLocked(redlock.acquire(['k'], 5000, { retryCount: 3, ...settings }), 4);
  const tookMs = performance.now() - began;
  assert(tookMs > leastMs && tookMs <= mostMs + MARGIN_MS, `after ${tookMs} ms`);
  return cause;
}

/** Returns a lock that another process, or an object of it, makes of the lock's value. */
const passedOn = (client, { resources, value }, expiration = Date.now() + 1000) =>
  new Lock(new Redlock([client]), resources, value, [], expiration);

check('acquires, extends and releases', async (redlock, client) => {
  const lock = await redlock.acquire(['k'], 60_000);
  assert.deepEqual([lock.redlock, lock.resources], [redlock, ['k']]);
  assert((await leaseOf('k', lock)) > 30_000);
  // The drift is 1 % of the duration, and 2 ms.
  assert(lock.expiration <= Date.now() + 60_000 - 602 && lock.expiration > Date.now() + 30_000);
  const [{ votesFor, votesAgainst }] = await Promise.all(lock.attempts);
  assert.deepEqual([[...votesFor], votesAgainst.size], [[client], 0]);
  const text = /^Lock \{\s+resources: \[ .k. \],\s+expiration: \d+,\s+fence: \d{16}\s+\}$/;
  assert.match(inspect(lock), text);
  const fields = Object.keys(JSON.parse(JSON.stringify(lock)));
  assert.deepEqual(fields, ['resources', 'expiration', 'fence']);

  const longer = await lock.extend(200_000);
  assert.deepEqual([longer.value, longer.fence, lock.expiration], [lock.value, lock.fence, 0]);
  assert((await leaseOf('k', longer)) > 150_000);
  assert(longer.expiration > Date.now() + 150_000);

  const { attempts, start } = await longer.release();
  assert.equal((await attempts[0]).votesFor.size, 1);
  assert(start <= Date.now());
  assert.equal(longer.expiration, 0);
  await server.untilFree();
});

check('acquires all of several resources, or none', async (redlock) => {
  const both = await redlock.acquire(['a', 'b'], 60_000);
  const { message } = await assertLocked(redlock.acquire(['b', 'c'], 60_000, ONCE), 1);
  assert.match(message, /^The operation was applied to: 0 of the 2 requested resources\.$/);
  assert.deepEqual(await server.info('c'), { holders: 0, waiters: 0 });
  await both.release();
  for (const key of ['a', 'b']) await server.untilFree(key);
});

check('gives up when the retries would be over', async (redlock, client) => {
  const held = await redlock.acquire(['k'], 60_000);
  const told = [];
  redlock.on('error', (error) => told.push(error));
  const cause = await assertGivesUp(redlock, { retryDelay: 100, retryJitter: 50 }, 445, 450);
  assert.deepEqual(told, [cause]);
  redlock.on('error', () => {
    throw new Error('of the listener');
  });
  await assertLocked(redlock.acquire(['k'], 1000, ONCE), 1);
  const before = await server.callsOf('lock.queue');
  await assertLocked(new Redlock([client], ONCE).acquire(['k'], 5000), 1);
  assert.equal(await server.callsOf('lock.queue'), before);
  await held.release();
});

check('a release or an extension of a lock that has ended says so', async (redlock) => {
  const released = await redlock.acquire(['k'], 60_000);
  await released.release();
  await assertLocked(released.release(), 11);
  const { message } = await failureOf(released.extend(1000));
  assert.equal(message, 'Cannot extend an already-expired lock.');
  for (const act of ['extend', 'release']) {
    const lost = await redlock.acquire(['k'], 60_000);
    await server.redis.del('k');
    await assertLocked(lost[act](1000));
    await server.untilFree();
  }
});

check('a lock that the program drops lasts until its lease ends', async (redlock) => {
  const began = performance.now();
  await redlock.acquire(['k'], 700);
  const next = redlock.acquire(['k'], 60_000, { retryCount: -1 });
  await collect();
  await (await next).release();
  assert(performance.now() - began >= 695);
});

check('a lock of another process is known by its value', async (redlock, client) => {
  const lock = await redlock.acquire(['a', 'b'], 60_000);
  const longer = await passedOn(client, lock, lock.expiration).extend(200_000);
  assert.equal(longer.value, lock.value);
  assert((await leaseOf('b', lock)) > 150_000);
  await passedOn(client, lock, longer.expiration).release();
  await server.untilFree('a');
  // It isn't acquired anew.
  await assertLocked(passedOn(client, lock).release());
  await assertLocked(passedOn(client, lock).extend(1000));
  await server.untilFree('a');
});

check('releases go on after an outage', async (redlock, client, { port }) => {
  const lock = await redlock.acquire(['k'], 60_000);
  const other = await redlock.acquire(['o'], 9000);
  const told = [];
  redlock.on('error', ({ name }) => told.push(name));
  async function assertOutage(call) {
    const { cause, message } = await attemptsFail(call);
    assert.equal(cause.name, 'UnavailableError');
    assert.equal(message, `${NO_QUORUM}: 127.0.0.1:${port}: no reply in time`);
  }
  const block = redlock.using(['block'], 60_000, async () => {
    // No write is executed.
    await server.call('CLIENT PAUSE 20000 WRITE');
    await assertOutage(redlock.acquire(['k'], 5000, ONCE));
    const settings = { retryCount: 3, retryDelay: 100, retryJitter: 0 };
    await assertOutage(redlock.acquire(['k'], 5000, settings));
    await assertOutage(lock.extend(5000));
    await assertOutage(lock.release());
    await assertOutage(passedOn(client, other, Date.now()).release());
    return 'the result';
  });
  assert.equal(await block, 'the result');
  await server.call('CLIENT UNPAUSE');
  assert.deepEqual(new Set(told), new Set(['UnavailableError']));
  for (const key of ['k', 'o', 'block']) await server.untilFree(key);
});

check("the release of another process's lock goes on", async (redlock, client, proxy) => {
  const lock = await redlock.acquire(['k'], 60_000);
  proxy.request = (text) => (/lock.release/i.test(text) ? null : undefined);
  const { cause } = await attemptsFail(passedOn(client, lock, lock.expiration).release());
  assert.equal(cause.name, 'UnavailableError');
  const before = proxy.count('lock.release');
  await until('it is sent again', () => proxy.count('lock.release') > before + 1);
  proxy.request = () => undefined;
  await server.untilFree();
});

check('a duration may be longer than a day', async (redlock) => {
  const week = 7 * 24 * 60 * 60 * 1000;
  const hasAll = async (lock) => (await leaseOf('k', lock)) > week - 60_000;
  const lock = await redlock.acquire(['k'], week);
  assert(await hasAll(lock));
  await lock.release();
  assert(await redlock.using(['k'], week, (_signal, context) => hasAll(context.lock)));
});

check("a key that npm's redlock holds is locked until it is free", async (redlock) => {
  const old = new OldRedlock([server.redis], ONCE);
  const oldLock = await old.acquire(['k'], 60_000);
  await assertLocked(redlock.acquire(['k'], 1000, ONCE), 1);
  await assertGivesUp(redlock, { retryDelay: 50, retryJitter: 50 }, 295, 300);
  await assertLocked(new Lock(redlock, ['k'], 'v', [], Date.now() + 1000).release());

  const asked = await server.callsOf('lock.queue');
  const endless = { retryCount: -1, retryDelay: 10, retryJitter: 5 };
  const next = redlock.acquire(['k'], 60_000, endless);
  await until('it asks twice', async () => (await server.callsOf('lock.queue')) >= asked + 2);
  await oldLock.release();
  const lock = await next;
  await assert.rejects(old.acquire(['k'], 1000));
  await lock.release();
  await (await old.acquire(['k'], 1000)).release();
});

check('using() extends the lock until its routine has ended', async (redlock) => {
  const fence = await redlock.using(['k'], 3000, async (signal, { lock }) => {
    const first = lock.expiration;
    await until('it is extended twice', () => lock.expiration > first + 1500);
    assert((await leaseOf('k', lock)) > 0);
    assert.deepEqual([signal.aborted, signal.error], [false, undefined]);
    return lock.fence;
  });
  assert.equal(typeof fence, 'number');
  const before = await server.callsOf('lock.extend');
  await redlock.using(['k'], 60_000, { automaticExtensionThreshold: 59_800 }, () =>
    // Without the threshold, the first extension would come after 20 s.
    until('two', async () => (await server.callsOf('lock.extend')) >= before + 2),
  );
  const fault = new TypeError('of the routine');
  const fails = redlock.using(['k'], 5000, () => Promise.reject(fault));
  assert.equal(await failureOf(fails), fault);
  await server.untilFree();
});

check('using() aborts its signal upon a loss, and throws its error', async (redlock) => {
  const settings = { automaticExtensionThreshold: 100 };
  let found;
  const work = redlock.using(['k'], 900, settings, async (signal) => {
    await server.redis.del('k');
    await until('it is told', () => signal.aborted);
    found = [signal.error, signal.reason];
  });
  const error = await attemptsFail(work);
  assert.equal(error.cause.name, 'LockLostError');
  assert.match(error.message, /: the lock was lost before it was released$/);
  assert.deepEqual(found, [error, error]);
  const unnoticed = redlock.using(['k'], 60_000, () => server.redis.del('k'));
  assert.equal((await attemptsFail(unnoticed)).cause.name, 'LockLostError');
  // The error of the routine is preferred to the loss.
  const fault = new Error('of the routine');
  const failing = redlock.using(['k'], 900, settings, async () => {
    await server.redis.del('k');
    throw fault;
  });
  assert.equal(await failureOf(failing), fault);
});

check('many Redlocks of one client share its connections', async (redlock, client) => {
  const connections = () => server.connections();
  await (await redlock.acquire(['k'], 1000)).release();
  await until('those of the test before are closed', async () => (await connections()) === 4);
  for (let i = 0; i < 20; i += 1)
    await (await new Redlock([client]).acquire(['k'], 1000)).release();
  assert.equal(await connections(), 4);
});

check('quit() closes the client', async (redlock, client) => {
  const lock = await redlock.acquire(['k'], 60_000);
  await redlock.quit();
  await until('it is closed', () => client.status === 'end' || client.isOpen === false);
  assert.match((await attemptsFail(lock.release())).message, /: the client is closed$/);
});

test('wrong arguments are refused, and nothing is sent', async (t) => {
  const [client, other] = [0, 0].map(() => connect('ioredis', [server.address]));
  t.after(async () => (await Promise.all([client, other])).forEach((it) => it.disconnect()));
  await refusesWrongArguments(await client, await other);
});

async function refusesWrongArguments(client, other) {
  const redlock = new Redlock([client]);
  const held = await redlock.acquire(['held'], 60_000);
  const before = await server.callsOf('lock.');
  const acquire = (...words) => redlock.acquire(['k'], ...words);
  const make = (...words) => new Redlock(...words);
  const all = { ...make([client]).settings };
  /** Calls by the beginning of their error's message. */
  const refused = {
    'resources: ': ['k', [5], [], ['k', 'k']].map((keys) => () => redlock.acquire(keys, 1000)),
    'Duration must be an integer value in mil': [0.5, NaN, Infinity, '1000', undefined].map(
      (ms) => () => acquire(ms),
    ),
    'duration: ': [
      ...[0, -1, 2 ** 53].map((ms) => () => acquire(ms)),
      ...[0, 2 ** 53].map((ms) => () => held.extend(ms)),
    ],
    'settings: ': [() => acquire(1000, null)],
    'lock: ': [() => redlock.release({ ...held }), () => redlock.extend(undefined, 1000)],
    'INVARIANT: routine is not a function.': [() => redlock.using(['k'], 1000)],
    'A lock `duration` must be at least 100ms': [() => redlock.using(['k'], 599, async () => {})],
    'Redlock must be instantiated with at lea': [() => make([])],
    'clients: expected one client (of a serve': [() => make([client, other])],
    'clients: ': [() => make(client), () => make(['redis://localhost'])],
    'client: ': [() => make([{}])],
    'scripts: ': [() => make([client], {}, { acquireScript: 'return 1' })],
    'retryCount: ': [-2, 0.5].map((n) => () => make([client], { retryCount: n })),
  };
  for (const name of Object.keys(all)) {
    const calls = [-3, NaN, '5', null].map((n) => () => acquire(1000, { [name]: n }));
    refused[`${name}: `] = [...calls, ...(refused[`${name}: `] ?? [])];
  }
  for (const [text, calls] of Object.entries(refused)) {
    const isRight = (error) =>
      (error instanceof TypeError || error instanceof RangeError) && error.message.startsWith(text);
    for (const call of calls) await assert.rejects(async () => call(), isRight, `${text} ${call}`);
  }
  assert.equal(await server.callsOf('lock.'), before);
  const { settings, clients } = make(new Set([client, client]), { retryCount: 2 });
  assert.deepEqual([settings, [...clients]], [{ ...all, retryCount: 2 }, [client]]);
  await held.release();
}

const page = readFileSync(join(packageFolder, '../../docs/migrate/npm-redlock.md'), 'utf8');

/** Runs a program of the page in a project that has the client, and returns what it prints. */
function run(client, text, type = 'module') {
  const { evaluate } = project({ [client]: client });
  return evaluate(text.replaceAll('localhost:6379', server.address), type);
}

test('the programs of the page get their locks', async () => {
  const [ioredis, nodeRedis] = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, text]) => text);
  assert.match(run('ioredis', ioredis), /^mine, with fence \d{16}\n$/);
  assert.match(run('redis', nodeRedis), /^mine, with fence \d{16}\n$/);
  await server.untilFree('orders:42');

  const impatient = ioredis.replace('retryCount: 10', 'retryCount: 0');
  await server.call('LOCK.ACQUIRE orders:42 other PX 60000');
  assert.equal(run('ioredis', impatient), 'another owner has the lock\n');
  await server.redis.del('orders:42');
  await server.call('ACL SETUSER weak on >secret +@all ~k* &*');
  const weak = impatient
    .replace('redis://', 'redis://weak:secret@')
    .replace('console.error(error)', '0');
  assert.match(run('ioredis', weak), /^no lock: The operation was unable .+: NOPERM /);
});

test('the lines of the page find the package, with either client alone', () => {
  const lines = [...page.matchAll(/^\| `[^`]+` \| `([^`]+)` \|$/gm)].map(([, line]) => line);
  const [imported, required] = lines.filter((line) => line.includes('@redis-lock/client/redlock'));
  const clients = {
    ioredis: `new (require('ioredis').Redis)({ lazyConnect: true })`,
    redis: `require('redis').createClient()`,
  };
  for (const [name, made] of Object.entries(clients)) {
    const look = `
      const { Lock, default: Same } = require('@redis-lock/client/redlock');
      if (Same !== Redlock) throw new Error('two classes');
      const lock = new Lock(new Redlock([${made}]), ['k'], 'value', [], 5);
      console.log(lock.redlock.settings.retryCount, lock.expiration);`;
    assert.equal(run(name, `${required}${look}`, 'commonjs'), '10 5\n');
    const require = `import { createRequire } from 'node:module';
      const require = createRequire(process.cwd() + '/try.mjs');`;
    assert.equal(run(name, `${imported}${require}${look}`), '10 5\n');
  }
});
