// The interface of npm's redlock 5, with the module's commands.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';

import OldRedlock from 'redlock';

import Redlock, { ExecutionError, Lock, ResourceLockedError } from '../dist/redlock.mjs';
import { begin, connect } from './clients.mjs';
import { packageFolder, project } from './package.mjs';
import { startProxy } from './proxy.mjs';
import { info, startCluster, startServer, until } from './server.mjs';

/**
 * Longest time for which a call may outlive its limit here, because other tests run at the same
 * time.
 */
const MARGIN_MS = 1000;
/** Longest time of a call that doesn't wait for a lock. */
const COMMAND_TIMEOUT_MS = 1000;
const NO_QUORUM = 'The operation was unable to achieve a quorum during its retry window';

let server;
let pid;
before(async () => {
  server = await startServer();
  pid = Number(/process_id:(\d+)/.exec(await server.redis.info('server'))[1]);
});
after(() => server.stop());

/** Returns how often the server got a command. */
async function callsOf(command) {
  const stats = await server.redis.info('commandstats');
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`, 'i').exec(stats)?.[1] ?? 0);
}

async function allCalls() {
  const calls = (await server.redis.info('commandstats')).matchAll(
    /cmdstat_lock\.\w+:calls=(\d+)/gi,
  );
  return [...calls].reduce((sum, [, count]) => sum + Number(count), 0);
}

const leaseOf = async (key, lock) => Number(await server.redis.call('LOCK.CHECK', key, lock.value));
const waiting = (count) =>
  until(`${count} wait`, async () => (await info(server.redis, 'k')).waiters === count);

/** Returns the error of a promise, and the time until it was rejected. */
async function failureOf(promise) {
  const began = performance.now();
  const error = await promise.then(
    () => assert.fail('it has not failed'),
    (reason) => reason,
  );
  return { error, tookMs: performance.now() - began };
}

/** Checks that an error says that another owner has the resource. */
async function assertLocked({ error }, attempts) {
  assert(error instanceof ExecutionError);
  assert.equal(error.name, 'ExecutionError');
  assert.equal(error.message, `${NO_QUORUM}.`);
  assert(error.cause instanceof ResourceLockedError);
  assert.equal(error.cause.name, 'ResourceLockedError');
  if (attempts !== undefined) assert.equal(error.attempts.length, attempts);
  for (const { membershipSize, quorumSize, votesFor, votesAgainst } of await Promise.all(
    error.attempts,
  )) {
    assert.deepEqual([membershipSize, quorumSize, votesFor.size], [1, 1, 0]);
    assert([...votesAgainst.values()].every((vote) => vote instanceof ResourceLockedError));
  }
}

/** Checks that an error names an outage, and comes in time. */
async function assertOutage({ error, tookMs }, cause, limitMs) {
  assert(error instanceof ExecutionError);
  assert.equal(error.cause.name, 'UnavailableError');
  assert.match(error.message, cause);
  assert(tookMs <= limitMs + MARGIN_MS, `after ${tookMs} ms`);
  for (const { votesAgainst } of await Promise.all(error.attempts)) {
    assert([...votesAgainst.values()].every((vote) => vote === error.cause));
  }
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
    assert.equal(typeof lock.fence, 'number');
    assert.equal(lock.redlock, redlock);
    assert.deepEqual(lock.resources, ['k']);
    const leaseMs = await leaseOf('k', lock);
    assert(leaseMs > 30_000 && leaseMs <= 60_000);
    // The drift is 1 % of the duration, and 2 ms.
    assert(lock.expiration <= Date.now() + 60_000 - 602 && lock.expiration > Date.now() + 30_000);
    const [stats] = await Promise.all(lock.attempts);
    assert.deepEqual([...stats.votesFor], [client]);
    assert.equal(stats.votesAgainst.size, 0);

    const longer = await lock.extend(200_000);
    assert(longer instanceof Lock);
    assert.deepEqual([longer.value, longer.fence, lock.expiration], [lock.value, lock.fence, 0]);
    assert((await leaseOf('k', longer)) > 150_000);
    assert(longer.expiration > Date.now() + 150_000);

    const { attempts, start } = await longer.release();
    assert.equal((await attempts[0]).votesFor.size, 1);
    assert(start <= Date.now());
    assert.equal(longer.expiration, 0);
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check('a lock that ended before a repeated command is released, not extended', async () => {
    const proxy = await startProxy(server);
    const client = await connect(kind, [`127.0.0.1:${proxy.port}`]);
    const redlock = new Redlock([client]);
    /** Loses a lock, and the first command about it. */
    async function endedLock() {
      const lock = await redlock.acquire(['k'], 60_000);
      await server.redis.del('k');
      proxy.request = (text, near) => {
        if (!/lock\./i.test(text)) return undefined;
        proxy.request = () => undefined;
        near.destroy();
        return null;
      };
      return lock;
    }
    await assertLocked(await failureOf((await endedLock()).extend(60_000)));
    await (await endedLock()).release();
    await client.quit();
    await proxy.stop();
  });

  check('acquires all of several resources, or none', async (redlock) => {
    const both = await redlock.acquire(['a', 'b'], 60_000);
    const failure = await failureOf(redlock.acquire(['b', 'c'], 60_000, { retryCount: 0 }));
    await assertLocked(failure, 1);
    assert.match(
      failure.error.cause.message,
      /^The operation was applied to: 0 of the 2 requested resources\.$/,
    );
    assert.deepEqual(await info(server.redis, 'c'), { holders: 0, waiters: 0 });
    await both.release();
    for (const key of ['a', 'b'])
      assert.deepEqual(await info(server.redis, key), { holders: 0, waiters: 0 });
  });

  check('waits in the queue, in order, without polling', async (redlock) => {
    const held = await redlock.acquire(['k'], 60_000);
    const order = [];
    const tasks = [];
    // As many as ask the server at the same time.
    for (let i = 0; i < 4; i += 1) {
      const task = redlock.acquire(['k'], 60_000, { retryCount: -1, retryDelay: 1 });
      tasks.push(task.then((lock) => (order.push(i), lock.release())));
      await waiting(i + 1);
    }
    const [began, asked] = [performance.now(), await callsOf('lock.queue')];
    await sleep(500);
    const rounds = Math.ceil((performance.now() - began) / 2000) + 1;
    assert((await callsOf('lock.queue')) - asked <= 4 * rounds);
    await held.release();
    await Promise.all(tasks);
    assert.deepEqual(order, [0, 1, 2, 3]);
  });

  check('gives up when the retries would be over', async (redlock) => {
    const held = await redlock.acquire(['k'], 60_000);
    const told = [];
    redlock.on('error', (error) => told.push(error));
    const failure = await failureOf(
      redlock.acquire(['k'], 5000, { retryCount: 3, retryDelay: 100, retryJitter: 50 }),
    );
    await assertLocked(failure, 4);
    assert(failure.tookMs > 445 && failure.tookMs <= 450 + MARGIN_MS, `after ${failure.tookMs} ms`);
    assert.deepEqual(told, [failure.error.cause]);
    await waiting(0);
    await held.release();
  });

  check('tries once with retryCount 0, and enters no queue', async (redlock, client) => {
    const held = await redlock.acquire(['k'], 60_000);
    const before = await callsOf('lock.queue');
    await assertLocked(
      await failureOf(new Redlock([client], { retryCount: 0 }).acquire(['k'], 5000)),
      1,
    );
    assert.equal(await callsOf('lock.queue'), before);
    await held.release();
  });

  check('a release or an extension of a lock that has ended says so', async (redlock) => {
    const released = await redlock.acquire(['k'], 60_000);
    await released.release();
    await assertLocked(await failureOf(released.release()), 11);
    const { error } = await failureOf(released.extend(1000));
    assert.equal(error.message, 'Cannot extend an already-expired lock.');
    assert.deepEqual(error.attempts, []);

    for (const act of ['extend', 'release']) {
      const lost = await redlock.acquire(['k'], 60_000);
      await server.redis.del('k');
      await assertLocked(await failureOf(lost[act](1000)));
      assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
    }
  });

  check('a lock that nobody releases lasts until its lease ends', async (redlock) => {
    const began = performance.now();
    await redlock.acquire(['k'], 700);
    const next = await redlock.acquire(['k'], 60_000, { retryCount: -1 });
    assert(performance.now() - began >= 695);
    await next.release();
  });

  check('a lock of another process is extended and released by its value', async (redlock) => {
    const lock = await redlock.acquire(['a', 'b'], 60_000);
    const { resources, value, expiration } = lock;
    const passedOn = new Lock(redlock, resources, value, [], expiration);
    const longer = await passedOn.extend(200_000);
    assert.equal(longer.value, value);
    assert((await leaseOf('b', lock)) > 150_000);
    await new Lock(redlock, resources, value, [], longer.expiration).release();
    assert.deepEqual(await info(server.redis, 'a'), { holders: 0, waiters: 0 });
    // It isn't acquired anew.
    await assertLocked(
      await failureOf(new Lock(redlock, resources, value, [], Date.now() + 1000).release()),
    );
    await assertLocked(
      await failureOf(new Lock(redlock, resources, value, [], Date.now() + 1000).extend(1000)),
    );
    assert.deepEqual(await info(server.redis, 'a'), { holders: 0, waiters: 0 });
  });

  check(
    'an extension that finds no server may set the lease late, and the lock knows that',
    async (redlock) => {
      const { resources, value, expiration } = await redlock.acquire(['k'], 60_000);
      const passedOn = new Lock(redlock, resources, value, [], expiration);
      await server.call('CLIENT PAUSE 3000 WRITE');
      try {
        const failure = await failureOf(passedOn.extend(5000));
        await assertOutage(failure, /: no answer from /, COMMAND_TIMEOUT_MS);
      } finally {
        await server.call('CLIENT UNPAUSE');
      }
      assert(passedOn.expiration > Date.now() && passedOn.expiration <= Date.now() + 5000);
    },
  );

  check('a release by value that finds no server goes on', async (redlock) => {
    const { resources, value, expiration } = await redlock.acquire(['k'], 60_000);
    const passedOn = new Lock(redlock, resources, value, [], expiration);
    await server.call('CLIENT PAUSE 20000 WRITE');
    try {
      await assertOutage(
        await failureOf(passedOn.release()),
        /: no answer from /,
        COMMAND_TIMEOUT_MS,
      );
    } finally {
      await server.call('CLIENT UNPAUSE');
    }
    await until('it is free', async () => (await info(server.redis, 'k')).holders === 0);
  });

  check(
    "a key that npm's redlock holds is locked, and the wait goes on until it is free",
    async (redlock) => {
      const old = new OldRedlock([server.redis], { retryCount: 0 });
      const oldLock = await old.acquire(['k'], 60_000);
      await assertLocked(await failureOf(redlock.acquire(['k'], 1000, { retryCount: 0 })), 1);
      const limited = await failureOf(
        redlock.acquire(['k'], 1000, { retryCount: 3, retryDelay: 50, retryJitter: 50 }),
      );
      await assertLocked(limited, 4);
      assert(
        limited.tookMs > 295 && limited.tookMs <= 300 + MARGIN_MS,
        `after ${limited.tookMs} ms`,
      );
      await assertLocked(
        await failureOf(new Lock(redlock, ['k'], 'v', [], Date.now() + 1000).release()),
      );

      const asked = await callsOf('lock.queue');
      const next = redlock.acquire(['k'], 60_000, {
        retryCount: -1,
        retryDelay: 10,
        retryJitter: 5,
      });
      await until('it has asked twice', async () => (await callsOf('lock.queue')) >= asked + 2);
      await oldLock.release();
      const lock = await next;
      await assert.rejects(old.acquire(['k'], 1000));
      await lock.release();
      await (await old.acquire(['k'], 1000)).release();
    },
  );

  check(
    'using() gives what the routine gives, and extends the lock until then',
    async (redlock) => {
      const result = await redlock.using(['k'], 3000, async (signal, { lock }) => {
        const first = lock.expiration;
        await until('it is extended twice', () => lock.expiration > first + 1500);
        assert((await leaseOf('k', lock)) > 0);
        assert.deepEqual([signal.aborted, signal.error], [false, undefined]);
        return lock.fence;
      });
      assert.equal(typeof result, 'number');
      assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
      assert.equal(
        await redlock.using(['k'], 5000, async () => 'without settings'),
        'without settings',
      );
    },
  );

  check('using() extends as early as the threshold says', async (redlock) => {
    const before = await callsOf('lock.extend');
    await redlock.using(['k'], 60_000, { automaticExtensionThreshold: 59_800 }, async () => {
      // Without the threshold, the first extension would come after 20 s.
      await until('it is extended twice', async () => (await callsOf('lock.extend')) >= before + 2);
    });
    assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
  });

  check(
    'using() throws what the routine throws, and the lock is free after it',
    async (redlock) => {
      const fault = new TypeError('of the routine');
      const { error } = await failureOf(redlock.using(['k'], 5000, () => Promise.reject(fault)));
      assert.equal(error, fault);
      assert.deepEqual(await info(server.redis, 'k'), { holders: 0, waiters: 0 });
    },
  );

  check('using() aborts its signal upon a loss, and throws its error', async (redlock) => {
    let found;
    const work = redlock.using(['k'], 900, { automaticExtensionThreshold: 100 }, async (signal) => {
      await server.redis.del('k');
      await until('it is told', () => signal.aborted);
      found = { error: signal.error, reason: signal.reason };
    });
    const { error } = await failureOf(work);
    assert(error instanceof ExecutionError);
    assert.equal(error.cause.name, 'LockLostError');
    assert.match(error.message, /: the lock was lost before it was released$/);
    assert.deepEqual([found.error, found.reason], [error, error]);
    // The error of the routine is preferred to the loss.
    const fault = new Error('of the routine');
    const failing = redlock.using(['k'], 900, { automaticExtensionThreshold: 100 }, async () => {
      await server.redis.del('k');
      throw fault;
    });
    assert.equal((await failureOf(failing)).error, fault);
  });

  check('using() notices a loss that the routine has not noticed', async (redlock) => {
    const { error } = await failureOf(redlock.using(['k'], 60_000, () => server.redis.del('k')));
    assert.equal(error.cause.name, 'LockLostError');
  });

  check('a server that stands still is an outage, within the limits', async (redlock) => {
    const held = await redlock.acquire(['held'], 60_000);
    const told = [];
    redlock.on('error', (error) => told.push(error));
    const lost = [];
    const began = performance.now();
    let standsStill;
    const stop = new Promise((resolve) => (standsStill = resolve));
    const using = redlock.using(['guarded'], 1500, async (signal) => {
      process.kill(pid, 'SIGSTOP');
      standsStill();
      signal.addEventListener('abort', () => lost.push(performance.now() - began, signal.error));
      await until('it is told', () => signal.aborted);
    });
    using.catch(() => {});
    try {
      await stop;
      const calls = [
        [redlock.acquire(['k'], 5000, { retryCount: 0 }), COMMAND_TIMEOUT_MS],
        [redlock.acquire(['k'], 5000, { retryCount: 3, retryDelay: 100, retryJitter: 0 }), 300],
        [held.extend(5000), COMMAND_TIMEOUT_MS],
        [held.release(), COMMAND_TIMEOUT_MS],
      ].map(async ([call, limitMs]) => [await failureOf(call), limitMs]);
      for (const [failure, limitMs] of await Promise.all(calls)) {
        await assertOutage(
          failure,
          new RegExp(`^${NO_QUORUM}: no answer from 127.0.0.1:${server.port} within [\\d.]+ s`),
          limitMs,
        );
        assert(told.includes(failure.error.cause));
      }
      const endless = redlock.acquire(['k'], 5000, { retryCount: -1 });
      const before = told.length;
      await until('the wait without a limit is reported', () => told.length > before);
      process.kill(pid, 'SIGCONT');
      await (await endless).release();
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    // The lease began after `began`, and its end is the loss.
    const { error } = await failureOf(using);
    assert(lost[0] <= 1500 + 2 * MARGIN_MS, `told after ${lost[0]} ms`);
    assert.equal(lost[1], error);
    assert.equal(error.cause.name, 'LockLostError');
    await until(
      'the release goes on without its caller',
      async () => (await info(server.redis, 'held')).holders === 0,
    );
  });

  check('a block whose release finds no server keeps its result', async (redlock) => {
    const told = [];
    redlock.on('error', (error) => told.push(error));
    try {
      const began = performance.now();
      const result = await redlock.using(['k'], 60_000, async () => {
        process.kill(pid, 'SIGSTOP');
        return 'the result';
      });
      assert.equal(result, 'the result');
      assert(performance.now() - began <= COMMAND_TIMEOUT_MS + 2 * MARGIN_MS);
      assert.deepEqual(
        told.map(({ name }) => name),
        ['UnavailableError'],
      );
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await until('the release goes on', async () => (await info(server.redis, 'k')).holders === 0);
  });

  test(`${kind}: a server that isn't there is an outage`, { timeout: 60_000 }, async () => {
    const { client } = begin(kind, ['127.0.0.1:1']);
    const redlock = new Redlock([client], { retryCount: 2, retryDelay: 100, retryJitter: 50 });
    await assertOutage(
      await failureOf(redlock.acquire(['k'], 5000)),
      /: 127\.0\.0\.1:1: connection refused$/,
      300,
    );
    client.disconnect();
  });

  check('a final error of the server ends the acquire at once', async (redlock) => {
    await server.redis.call(
      'ACL',
      'SETUSER',
      'weak',
      'on',
      '>secret',
      '+@all',
      '~k*',
      '&*',
      '-lock.queue',
    );
    const { client } = begin(kind, [server.address], { username: 'weak', password: 'secret' });
    try {
      const { error, tookMs } = await failureOf(
        new Redlock([client], { retryCount: 100, retryDelay: 1000 }).acquire(['k'], 1000),
      );
      assert(error instanceof ExecutionError && !(error.cause instanceof ResourceLockedError));
      assert.match(error.cause.message, /^NOPERM/);
      assert.match(error.message, /: NOPERM/);
      assert(tookMs < 10_000);
    } finally {
      await client.quit();
    }
  });

  check('wrong arguments are refused, and nothing is sent', async (redlock) => {
    const held = await redlock.acquire(['k'], 60_000);
    const before = await allCalls();
    const integer = /^Duration must be an integer value in milliseconds\.$/;
    const cases = [
      [() => redlock.acquire('k', 1000), TypeError, /^resources: /],
      [() => redlock.acquire([], 1000), RangeError, /^resources: /],
      [() => redlock.acquire([5], 1000), TypeError, /^resources: /],
      [() => redlock.acquire(['k', 'k'], 1000), RangeError, /^resources: /],
      ...[0.5, NaN, Infinity, '1000', undefined].map((ms) => [
        () => redlock.acquire(['k'], ms),
        RangeError,
        integer,
      ]),
      ...[0, -1, 2 ** 53].map((ms) => [
        () => redlock.acquire(['k'], ms),
        RangeError,
        /^duration: /,
      ]),
      [() => redlock.acquire(['k'], 1000, null), TypeError, /^settings: /],
      ...[-2, 0.5, NaN].map((n) => [
        () => redlock.acquire(['k'], 1000, { retryCount: n }),
        RangeError,
        /^retryCount: /,
      ]),
      ...['retryDelay', 'retryJitter', 'driftFactor', 'automaticExtensionThreshold'].flatMap(
        (name) => [
          ...[-1, NaN, Infinity].map((n) => [
            () => redlock.acquire(['k'], 1000, { [name]: n }),
            RangeError,
            new RegExp(`^${name}: `),
          ]),
          [
            () => redlock.acquire(['k'], 1000, { [name]: '5' }),
            TypeError,
            new RegExp(`^${name}: `),
          ],
        ],
      ),
      ...[0.5, 0, 2 ** 53].map((ms) => [() => held.extend(ms), RangeError, /^[Dd]uration/]),
      [() => redlock.release({ resources: ['k'], value: held.value }), TypeError, /^lock: /],
      [() => redlock.extend(undefined, 1000), TypeError, /^lock: /],
      [() => redlock.using(['k'], 1000), TypeError, /^INVARIANT: routine is not a function\.$/],
      [() => redlock.using('k', 1000, async () => {}), TypeError, /^resources: /],
      [() => redlock.using(['k'], 0.5, async () => {}), RangeError, integer],
      [
        () => redlock.using(['k'], 599, async () => {}),
        RangeError,
        /at least 100ms greater than the `automaticExtensionThreshold`/,
      ],
    ];
    for (const [call, type, message] of cases)
      await assert.rejects(call(), (error) => error instanceof type && message.test(error.message));
    assert.equal(await allCalls(), before);
    assert((await leaseOf('k', held)) > 30_000);
    await held.release();
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

  check('quit() closes the client', async () => {
    const client = await connect(kind, [server.address]);
    const redlock = new Redlock([client], { retryCount: 1 });
    const lock = await redlock.acquire(['k'], 60_000);
    await redlock.quit();
    await until('it is closed', () =>
      kind === 'ioredis' ? client.status === 'end' : !client.isOpen,
    );
    const { error } = await failureOf(lock.release());
    assert.match(
      error.message,
      kind === 'ioredis' ? /: Connection is closed\.$/ : /: the client is closed/,
    );
  });

  check('no text shows the value', async (redlock) => {
    const lock = await redlock.acquire(['k'], 60_000);
    for (const text of [inspect(lock), JSON.stringify(lock), String(lock)])
      assert.doesNotMatch(text, new RegExp(lock.value));
    assert.match(
      inspect(lock),
      /^Lock \{\s+resources: \[ .k. \],\s+expiration: \d+,\s+fence: \d+\s+\}$/,
    );
    await lock.release();
  });

  check('an error listener that throws does no harm', async (redlock) => {
    const held = await redlock.acquire(['k'], 60_000);
    redlock.on('error', () => {
      throw new Error('of the listener');
    });
    await assertLocked(await failureOf(redlock.acquire(['k'], 1000, { retryCount: 0 })), 1);
    await held.release();
  });
}

test('the constructor says what it does not take', async () => {
  const client = await connect('ioredis', [server.address]);
  const other = await connect('ioredis', [server.address]);
  const refused = (work, type, message) =>
    assert.throws(work, (error) => error instanceof type && message.test(error.message));
  refused(
    () => new Redlock([]),
    Error,
    /^Redlock must be instantiated with at least one redis client\.$/,
  );
  refused(
    () => new Redlock([client, other]),
    RangeError,
    /^clients: expected one client .+, not 2: .*several independent servers$/,
  );
  refused(() => new Redlock(client), TypeError, /^clients: /);
  refused(() => new Redlock([{}]), TypeError, /^client: /);
  refused(() => new Redlock(['redis://localhost']), TypeError, /^clients: /);
  refused(() => new Redlock([client], { retryCount: -2 }), RangeError, /^retryCount: /);
  refused(() => new Redlock([client], {}, { acquireScript: 'return 1' }), TypeError, /^scripts: /);
  const redlock = new Redlock(new Set([client, client]), { retryCount: 2 });
  assert.deepEqual(redlock.settings, {
    driftFactor: 0.01,
    retryCount: 2,
    retryDelay: 200,
    retryJitter: 100,
    automaticExtensionThreshold: 500,
  });
  assert.deepEqual([...redlock.clients], [client]);
  client.disconnect();
  other.disconnect();
});

for (const kind of ['ioredis', 'node-redis']) {
  test(`${kind}: in a cluster`, { timeout: 60_000 }, async () => {
    const cluster = await startCluster();
    const client = await connect(kind, cluster.addresses, true);
    try {
      const redlock = new Redlock([client]);
      const both = await redlock.acquire(['{t}a', '{t}b'], 60_000);
      await assertLocked(await failureOf(redlock.acquire(['{t}b'], 1000, { retryCount: 0 })), 1);
      const next = redlock.using(['{t}b'], 60_000, async (signal, { lock }) => lock.fence);
      await both.release();
      assert((await next) > both.fence);
      const { error } = await failureOf(redlock.acquire(['a', 'b'], 1000));
      assert.match(error.cause.message, /^CROSSSLOT/);
    } finally {
      client.disconnect();
      cluster.stop();
    }
  });
}

const page = readFileSync(join(packageFolder, '../../docs/migrate/npm-redlock.md'), 'utf8');

/** Runs a program of the page in a project that has these clients, and returns what it prints. */
function run(clients, text, type = 'module') {
  const { folder, remove } = project(Object.fromEntries(clients.map((name) => [name, name])));
  const words = [
    `--input-type=${type}`,
    '--eval',
    text.replaceAll('localhost:6379', server.address),
  ];
  try {
    return execFileSync(process.execPath, words, {
      cwd: folder,
      encoding: 'utf8',
      stdio: 'pipe',
      timeout: 30_000,
    });
  } finally {
    remove();
  }
}

test('the programs of the page get their locks', async () => {
  const [ioredis, nodeRedis] = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, text]) => text);
  assert.match(run(['ioredis'], ioredis), /^mine, with fence \d{16}\n$/);
  assert.match(run(['redis'], nodeRedis), /^mine, with fence \d{16}\n$/);
  assert.deepEqual(await info(server.redis, 'orders:42'), { holders: 0, waiters: 0 });

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

test('the lines of the page find the package by import and by require, with either client alone', () => {
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
    const require = `import { createRequire } from 'node:module';\nconst require = createRequire(process.cwd() + '/try.mjs');`;
    assert.equal(run([name], `${imported}${require}${look}`), '10 5\n');
  }
});
