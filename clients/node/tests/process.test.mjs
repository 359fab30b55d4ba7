// A process ends by itself and without output once its client is closed, even if the library still
// had work to do.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';

import { info, startCluster, startServer, until } from './server.mjs';

/**
 * Longest time from the last statement to the end of the process. It is shorter than the library's
 * own times. It is longer than the pause between two connection attempts, which the clients don't
 * cut short.
 */
const LINGER_MS = 5000;

let server;
let cluster;
before(async () => ([server, cluster] = await Promise.all([startServer(), startCluster()])));
after(() => {
  server.stop();
  cluster.stop();
});

/** Runs statements in another process, with `locks`, `client`, `sleep` and `open`. */
async function run(kind, servers, statements) {
  const program = `
    import { connect } from './tests/clients.mjs';
    import { Locks } from './dist/${kind}.js';
    import { setTimeout as sleep } from 'node:timers/promises';
    const open = () => connect('${kind}', ${JSON.stringify(servers)}, ${servers.length > 1});
    const client = await open();
    const outages = [];
    const locks = new Locks(client, { observer: { unavailable: (error) => outages.push(error.message) } });
    ${statements}
    console.log(Date.now());`;
  const words = ['--unhandled-rejections=strict', '--input-type=module', '--eval', program];
  const child = spawn(process.execPath, words, { cwd: `${import.meta.dirname}/..` });
  const said = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) child[name].on('data', (text) => (said[name] += text));
  const code = await new Promise((ended) => child.on('exit', ended));
  const lingeredMs = Date.now() - Number(said.stdout.trim());
  assert.deepEqual({ code, stderr: said.stderr }, { code: 0, stderr: '' });
  assert(lingeredMs < LINGER_MS, `it ended ${lingeredMs} ms after its last statement`);
}

const waitedFor = `
  const held = await locks.lock('k').acquire();
  const waiting = locks.lock('k', { keepMs: 60_000 }).acquire();
  await sleep(300);
  await held.release();
  await (await waiting).release();`;

const cases = {
  'after a wait': `${waitedFor} await client.quit();`,
  'with a client that does not keep it alive, while a lock and a session are held': `
    await locks.lock('held', { leaseMs: 60_000 }).acquire();
    await locks.lock('session', { session: true, leaseMs: 60_000 }).acquire();
    (client.stream ?? client).unref();`,
  'while a lock is held': `await locks.lock('held', { leaseMs: 60_000 }).acquire(); await client.quit();`,
  'while a session is held': `await locks.lock('session', { session: true, leaseMs: 60_000 }).acquire(); await client.quit();`,
  'while a lock is waited for': `
    await locks.lock('k', { leaseMs: 60_000, renew: false }).acquire();
    const waiting = locks.lock('k', { keepMs: 60_000, waitMs: 60_000 }).acquire().catch(() => {});
    await sleep(300);
    await client.quit();
    await waiting;`,
};

for (const kind of ['ioredis', 'node-redis']) {
  for (const [when, statements] of Object.entries(cases)) {
    test(`${kind}: a process ends by itself ${when}`, { timeout: 60_000 }, async () => {
      await server.redis.flushall();
      await run(kind, [server.address], statements);
    });
  }

  test(
    `${kind}: a process with a cluster's client ends by itself after a wait`,
    { timeout: 60_000 },
    async () => {
      await run(kind, cluster.addresses, `${waitedFor} await client.quit();`);
    },
  );

  test(
    `${kind}: a server that dies for good leaves no rejection unhandled`,
    { timeout: 60_000 },
    async () => {
      const mortal = await startServer();
      try {
        await mortal.call('LOCK.ACQUIRE taken other PX 60000');
        const dies = run(
          kind,
          [mortal.address],
          `
        const held = await locks.lock('held', { leaseMs: 1500 }).acquire();
        const session = await locks.lock('session', { session: true, leaseMs: 1500 }).acquire();
        await locks.lock('taken', { waitMs: 6000 }).acquire().catch(() => {});
        if (!held.lost || !session.lost) throw new Error('the loss is not told');
        if (outages.length === 0) throw new Error('the outage is not told');
        client.disconnect();`,
        );
        await until('it waits', async () => (await info(mortal.redis, 'taken')).waiters === 1);
        mortal.stop();
        await dies;
      } finally {
        mortal.stop();
      }
    },
  );
}
