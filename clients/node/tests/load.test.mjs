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

/** Returns the CPU time of one call of each, in us: the least of several rounds by turns. */
async function cpuOf(...works) {
  const least = works.map(() => Infinity);
  for (let round = 0; round < 8; round += 1) {
    for (const [i, work] of works.entries()) {
      const before = process.cpuUsage();
      for (let pair = 0; pair < PAIRS; pair += 1) await work();
      const { user, system } = process.cpuUsage(before);
      least[i] = Math.min(least[i], (user + system) / PAIRS);
    }
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
    async function raw() {
      await call('LOCK.ACQUIRE', 'raw', 'token', 'PX', '30000');
      await call('LOCK.RELEASE', 'raw', 'token');
    }
    async function pair() {
      const lock = locks.lock('k');
      assert(await lock.tryAcquire());
      await lock.release();
    }
    const [rawUs, pairUs] = await cpuOf(raw, pair);
    assert(pairUs <= 2 * rawUs, `a pair took ${pairUs} us, the raw commands took ${rawUs} us`);
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
