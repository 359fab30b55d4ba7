// The interface of npm's redlock 5, with the module's commands.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { inspect } from 'node:util';

import OldRedlock from 'redlock';

import Redlock, { ExecutionError, Lock, ResourceLockedError } from '../dist/redlock.mjs';
import { connect } from './clients.mjs';
import { packageFolder, project } from './package.mjs';
import { callsOf, collect, info, startServer, until } from './server.mjs';

/**
 * Longest time for which a call may outlive its limit here, because other tests run at the same
 * time.
 */
const MARGIN_MS = 1000;
const NO_QUORUM = 'The operation was unable to achieve a quorum during its retry window';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

const leaseOf = async (key, lock) => Number(await server.redis.call('LOCK.CHECK', key, lock.value));
const free = (key = 'k') =>
  until('it is free', async () => (await info(server.redis, key)).holders === 0);

/** Returns the error of a call, which votes for its cause in each attempt. */
async function failureOf(call) {
  const error = await call.then(
    () => assert.fail('it has not failed'),
    (reason) => reason,
  );
  assert(error instanceof ExecutionError, inspect(error));
  for (const { membershipSize, votesFor, votesAgainst } of await Promise.all(error.attempts)) {
    assert.deepEqual([membershipSize, votesFor.size], [1, 0]);
    assert.deepEqual([...votesAgainst.values()], [error.cause]);
  }
  return error;
}

/** Checks that a call fails because another owner has the resource. */
async function assertLocked(call, attempts) {
  const error = await failureOf(call);
  assert.equal(error.message, `${NO_QUORUM}.`);
  assert(error.cause instanceof ResourceLockedError);
  if (attempts !== undefined) assert.equal(error.attempts.length, attempts);
  return error;
}

async function assertOutage(call) {
  const { cause, message } = await failureOf(call);
  assert.equal(cause.name, 'UnavailableError');
  assert.equal(message, `${NO_QUORUM}: ${server.address}: no reply in time`);
}

/** Runs work while the server executes no writes. */
async function paused(work) {
  await server.call('CLIENT PAUSE 20000 WRITE');
  await work().finally(() => server.call('CLIENT UNPAUSE'));
}

for (const kind of ['ioredis', 'node-redis']) {
  const check = (what, work) =>
    test(`${kind}: ${what}`, { timeout: 60_000 }, async () => {
      const client = await connect(kind, [server.address]);
      try {
        await server.redis.flushall();
        await work(new Redlock([client]), client);
      } finally {
        await client.quit();
      }
    });

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
    assert.deepEqual(Object.keys(JSON.parse(JSON.stringify(lock))), [
      'resources',
      'expiration',
      'fence',
    ]);

    const longer = await lock.extend(200_000);
    assert.deepEqual([longer.value, longer.fence, lock.expiration], [lock.value, lock.fence, 0]);
    assert((await leaseOf('k', longer)) > 150_000);
    assert(longer.expiration > Date.now() + 150_000);

    const { attempts, start } = await longer.release();
    assert.equal((await attempts[0]).votesFor.size, 1);
    assert(start <= Date.now());
    assert.equal(longer.expiration, 0);
    await free();
  });

  check('acquires all of several resources, or none', async (redlock) => {
    const both = await redlock.acquire(['a', 'b'], 60_000);
    const { cause } = await assertLocked(redlock.acquire(['b', 'c'], 60_000, { retryCount: 0 }), 1);
    assert.match(cause.message, /^The operation was applied to: 0 of the 2 requested resources\.$/);
    assert.deepEqual(await info(server.redis, 'c'), { holders: 0, waiters: 0 });
    await both.release();
    for (const key of ['a', 'b']) await free(key);
  });

  check('gives up when the retries would be over', async (redlock, client) => {
    const held = await redlock.acquire(['k'], 60_000);
    const told = [];
    redlock.on('error', (error) => told.push(error));
    const began = performance.now();
    const settings = { retryCount: 3, retryDelay: 100, retryJitter: 50 };
    const { cause } = await assertLocked(redlock.acquire(['k'], 5000, settings), 4);
    const tookMs = performance.now() - began;
    assert(tookMs > 445 && tookMs <= 450 + MARGIN_MS, `after ${tookMs} ms`);
    assert.deepEqual(told, [cause]);
    redlock.on('error', () => {
      throw new Error('of the listener');
    });
    await assertLocked(redlock.acquire(['k'], 1000, { retryCount: 0 }), 1);
    const before = await callsOf(server, 'lock.queue');
    await assertLocked(new Redlock([client], { retryCount: 0 }).acquire(['k'], 5000), 1);
    assert.equal(await callsOf(server, 'lock.queue'), before);
    await held.release();
  });

  check('a release or an extension of a lock that has ended says so', async (redlock) => {
    const released = await redlock.acquire(['k'], 60_000);
    await released.release();
    await assertLocked(released.release(), 11);
    const expired = /^Cannot extend an already-expired lock\.$/;
    await assert.rejects(released.extend(1000), ({ message }) => expired.test(message));
    for (const act of ['extend', 'release']) {
      const lost = await redlock.acquire(['k'], 60_000);
      await server.redis.del('k');
      await assertLocked(lost[act](1000));
      await free();
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

  check('a lock of another process is extended and released by its value', async (_, client) => {
    const lock = await new Redlock([client]).acquire(['a', 'b'], 60_000);
    const redlock = new Redlock([client]);
    const { resources, value, expiration } = lock;
    const longer = await new Lock(redlock, resources, value, [], expiration).extend(200_000);
    assert.equal(longer.value, value);
    assert((await leaseOf('b', lock)) > 150_000);
    const passedOn = (time = Date.now() + 1000) =>
      new Lock(new Redlock([client]), resources, value, [], time);
    await passedOn(longer.expiration).release();
    await free('a');
    // It isn't acquired anew.
    await assertLocked(passedOn().release());
    await assertLocked(passedOn().extend(1000));
    await free('a');
  });

  check('a server that stands still is an outage, and a release goes on', async (redlock) => {
    const [lock, other] = [
      await redlock.acquire(['k'], 60_000),
      await redlock.acquire(['o'], 9000),
    ];
    const passedOn = new Lock(
      new Redlock([...redlock.clients]),
      ['o'],
      other.value,
      [],
      Date.now(),
    );
    const told = [];
    redlock.on('error', ({ name }) => told.push(name));
    await paused(async () => {
      const settings = { retryCount: 3, retryDelay: 100, retryJitter: 0 };
      await assertOutage(redlock.acquire(['k'], 5000, { retryCount: 0 }));
      await assertOutage(redlock.acquire(['k'], 5000, settings));
      await assertOutage(lock.extend(5000));
      await assertOutage(lock.release());
      await assertOutage(passedOn.release());
    });
    assert.deepEqual(new Set(told), new Set(['UnavailableError']));
    for (const key of ['k', 'o']) await free(key);
  });

  check('a block whose release finds no server keeps its result', async (redlock) => {
    const told = [];
    redlock.on('error', ({ name }) => told.push(name));
    const result = redlock.using(['k'], 60_000, async () => {
      await server.call('CLIENT PAUSE 20000 WRITE');
      return 'the result';
    });
    assert.equal(await result, 'the result');
    await server.call('CLIENT UNPAUSE');
    assert.deepEqual(told, ['UnavailableError']);
    await free();
  });

  check("a key that npm's redlock holds is locked until it is free", async (redlock) => {
    const old = new OldRedlock([server.redis], { retryCount: 0 });
    const oldLock = await old.acquire(['k'], 60_000);
    await assertLocked(redlock.acquire(['k'], 1000, { retryCount: 0 }), 1);
    const began = performance.now();
    const settings = { retryCount: 3, retryDelay: 50, retryJitter: 50 };
    await assertLocked(redlock.acquire(['k'], 1000, settings), 4);
    const tookMs = performance.now() - began;
    assert(tookMs > 295 && tookMs <= 300 + MARGIN_MS, `after ${tookMs} ms`);
    await assertLocked(new Lock(redlock, ['k'], 'v', [], Date.now() + 1000).release());

    const asked = await callsOf(server, 'lock.queue');
    const endless = { retryCount: -1, retryDelay: 10, retryJitter: 5 };
    const next = redlock.acquire(['k'], 60_000, endless);
    await until('it asks twice', async () => (await callsOf(server, 'lock.queue')) >= asked + 2);
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
    const before = await callsOf(server, 'lock.extend');
    await redlock.using(['k'], 60_000, { automaticExtensionThreshold: 59_800 }, () =>
      // Without the threshold, the first extension would come after 20 s.
      until('two', async () => (await callsOf(server, 'lock.extend')) >= before + 2),
    );
    const fault = new TypeError('of the routine');
    const fails = redlock.using(['k'], 5000, () => Promise.reject(fault));
    await assert.rejects(fails, (error) => error === fault);
    await free();
  });

  check('using() aborts its signal upon a loss, and throws its error', async (redlock) => {
    const settings = { automaticExtensionThreshold: 100 };
    let found;
    const work = redlock.using(['k'], 900, settings, async (signal) => {
      await server.redis.del('k');
      await until('it is told', () => signal.aborted);
      found = [signal.error, signal.reason];
    });
    const error = await failureOf(work);
    assert.equal(error.cause.name, 'LockLostError');
    assert.match(error.message, /: the lock was lost before it was released$/);
    assert.deepEqual(found, [error, error]);
    const unnoticed = await failureOf(redlock.using(['k'], 60_000, () => server.redis.del('k')));
    assert.equal(unnoticed.cause.name, 'LockLostError');
    // The error of the routine is preferred to the loss.
    const fault = new Error('of the routine');
    const failing = redlock.using(['k'], 900, settings, async () => {
      await server.redis.del('k');
      throw fault;
    });
    await assert.rejects(failing, (error) => error === fault);
  });

  check('many Redlocks of one client share its connections', async (redlock, client) => {
    const connections = async () =>
      Number(/connected_clients:(\d+)/.exec(await server.redis.info('clients'))[1]);
    await (await redlock.acquire(['k'], 1000)).release();
    await until('those of the test before are closed', async () => (await connections()) === 4);
    for (let i = 0; i < 20; i += 1)
      await (await new Redlock([client]).acquire(['k'], 1000)).release();
    assert.equal(await connections(), 4);
  });

  test(`${kind}: quit() closes the client`, { timeout: 60_000 }, async () => {
    const client = await connect(kind, [server.address]);
    const redlock = new Redlock([client], { retryCount: 1 });
    const lock = await redlock.acquire(['k'], 60_000);
    await redlock.quit();
    await until('it is closed', () => client.status === 'end' || client.isOpen === false);
    assert.match((await failureOf(lock.release())).message, /: the client is closed$/);
  });
}

test('wrong arguments are refused, and nothing is sent', async () => {
  const client = await connect('ioredis', [server.address]);
  const other = await connect('ioredis', [server.address]);
  const redlock = new Redlock([client]);
  const held = await redlock.acquire(['held'], 60_000);
  const before = await callsOf(server, 'lock.');
  const acquire = (...words) => redlock.acquire(['k'], ...words);
  const make = (...words) => new Redlock(...words);
  const durations = [0.5, NaN, Infinity, '1000', undefined];
  const all = { ...make([client]).settings };
  /** Calls by the beginning of their error's message. */
  const refused = {
    'resources: ': ['k', [5], [], ['k', 'k']].map((keys) => () => redlock.acquire(keys, 1000)),
    'Duration must be an integer value in mil': durations.map((ms) => () => acquire(ms)),
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
  assert.equal(await callsOf(server, 'lock.'), before);
  const { settings, clients } = make(new Set([client, client]), { retryCount: 2 });
  assert.deepEqual([settings, [...clients]], [{ ...all, retryCount: 2 }, [client]]);
  await held.release();
  client.disconnect();
  other.disconnect();
});

const page = readFileSync(join(packageFolder, '../../docs/migrate/npm-redlock.md'), 'utf8');

/** Runs a program of the page in a project that has these clients, and returns what it prints. */
function run(clients, text, type = 'module') {
  const { folder, remove } = project(Object.fromEntries(clients.map((name) => [name, name])));
  const program = text.replaceAll('localhost:6379', server.address);
  const options = { cwd: folder, encoding: 'utf8', stdio: 'pipe', timeout: 30_000 };
  try {
    return execFileSync(process.execPath, [`--input-type=${type}`, '--eval', program], options);
  } finally {
    remove();
  }
}

test('the programs of the page get their locks', async () => {
  const [ioredis, nodeRedis] = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, text]) => text);
  assert.match(run(['ioredis'], ioredis), /^mine, with fence \d{16}\n$/);
  assert.match(run(['redis'], nodeRedis), /^mine, with fence \d{16}\n$/);
  await free('orders:42');

  const impatient = ioredis.replace('retryCount: 10', 'retryCount: 0');
  await server.redis.call('LOCK.ACQUIRE', 'orders:42', 'other', 'PX', 60_000);
  assert.equal(run(['ioredis'], impatient), 'another owner has the lock\n');
  await server.redis.del('orders:42');
  await server.redis.call('ACL', 'SETUSER', 'weak', 'on', '>secret', '+@all', '~k*', '&*');
  const weak = impatient
    .replace('redis://', 'redis://weak:secret@')
    .replace('console.error(error)', '0');
  assert.match(run(['ioredis'], weak), /^no lock: The operation was unable .+: NOPERM /);
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
    assert.equal(run([name], `${required}${look}`, 'commonjs'), '10 5\n');
    const require = `import { createRequire } from 'node:module';
      const require = createRequire(process.cwd() + '/try.mjs');`;
    assert.equal(run([name], `${imported}${require}${look}`), '10 5\n');
  }
});
