// Bounds of what many tasks, and many locks, cost.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { connect } from './clients.mjs';
import { startServer } from './server.mjs';

const TASKS = 500;
const PAIRS = 2000;

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

/** Returns the CPU time of one call in us, the least of several rounds. */
async function cpuOf(work) {
  let least = Infinity;
  for (let round = 0; round < 5; round += 1) {
    const before = process.cpuUsage();
    for (let i = 0; i < PAIRS; i += 1) await work();
    const { user, system } = process.cpuUsage(before);
    least = Math.min(least, (user + system) / PAIRS);
  }
  return least;
}

for (const kind of ['ioredis', 'node-redis']) {
  const { Locks } = await import(`../dist/${kind}.js`);

  const check = (what, work) =>
    test(`${kind}: ${what}`, { timeout: 120_000 }, async () => {
      const client = await connect(kind, [server.address]);
      try {
        await server.redis.flushall();
        await work(new Locks(client), client);
      } finally {
        await client.quit();
      }
    });

  check('a pair takes at most twice the CPU time of the raw commands', async (locks, client) => {
    const call = (...words) => (kind === 'ioredis' ? client.call(...words) : client.sendCommand(words));
    const raw = await cpuOf(async () => {
      await call('LOCK.ACQUIRE', 'raw', 'token', 'PX', '30000');
      await call('LOCK.RELEASE', 'raw', 'token');
    });
    const tried = await cpuOf(async () => {
      const lock = locks.lock('k');
      assert(await lock.tryAcquire());
      await lock.release();
    });
    assert(tried <= 2 * raw, `a pair took ${tried} us, the raw commands took ${raw} us`);
  });

  check(`${TASKS} tasks with a lock object each are served in order, the first within 20 ms`, async (locks) => {
    const order = [];
    await locks.using('warm', {}, () => {});
    const began = performance.now();
    let firstAfterMs;
    const task = async (_, i) =>
      locks.using('k', {}, () => {
        firstAfterMs ??= performance.now() - began;
        order.push(i);
      });
    await Promise.all(Array.from({ length: TASKS }, task));
    assert.deepEqual(order, [...order.keys()]);
    assert(firstAfterMs < 20, `the first was served after ${firstAfterMs} ms`);
  });

  check(`${TASKS} tasks with one lock object are served in order`, async (locks) => {
    const lock = locks.lock('k');
    const order = [];
    const task = async (_, i) => {
      await lock.acquire();
      order.push(i);
      await lock.release();
    };
    await Promise.all(Array.from({ length: TASKS }, task));
    assert.deepEqual(order, [...order.keys()]);
  });

  check(`${TASKS} tasks with limits of 0 to 300 ms are served as long as there is time`, async (locks) => {
    await locks.using('warm', {}, () => {});
    const workMs = 2;
    let served = 0;
    const task = async (_, i) => {
      const lock = locks.lock('k');
      if ((await lock.acquire({ waitMs: (300 * i) / TASKS })) === undefined) return;
      served += 1;
      await sleep(workMs);
      await lock.release();
    };
    await Promise.all(Array.from({ length: TASKS }, task));
    // The server serves in order, and each task works for 2 to 3 ms. Without overhead that is about 100.
    assert(served > 30, `${served} tasks were served`);
  });
}
