// A process ends by itself and without output once its client is closed, even if the library still
// had work to do.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';

import { packageFolder } from './package.mjs';
import { KINDS, startCluster, startServer } from './server.mjs';

/**
 * Longest time from the last statement to the end of the process. It is shorter than the library's
 * own times. It is longer than the pause between two connection attempts, which the clients don't
 * cut short.
 */
const LINGER_MS = 5000;

const [server, cluster] = await Promise.all([startServer(), startCluster()]);

/** Runs statements in another process, with `locks`, `client`, `hold`, `sleep` and `outages`. */
async function run(kind, servers, statements) {
  const program = `
    import { connect } from './tests/clients.mjs';
    import { Locks } from './dist/${kind}.js';
    import { setTimeout as sleep } from 'node:timers/promises';
    const client = await connect('${kind}', ${JSON.stringify(servers)}, ${servers.length > 1});
    const outages = [];
    const observer = { unavailable: (error) => outages.push(error.message) };
    const locks = new Locks(client, { observer });
    const hold = (key, more) => locks.lock(key, { leaseMs: 60_000, ...more }).acquire();
    ${statements}
    console.log(Date.now());`;
  const words = ['--unhandled-rejections=strict', '--input-type=module', '--eval', program];
  const child = spawn(process.execPath, words, { cwd: packageFolder });
  const said = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr']) child[name].on('data', (text) => (said[name] += text));
  const code = await new Promise((ended) => child.on('exit', ended));
  const lingeredMs = Date.now() - Number(said.stdout.trim());
  assert.deepEqual({ code, stderr: said.stderr }, { code: 0, stderr: '' });
  assert(lingeredMs < LINGER_MS, `it ended ${lingeredMs} ms after its last statement`);
}

const afterWait = `
  const held = await hold('k');
  const waiting = hold('k', { keepMs: 60_000 });
  await sleep(300);
  await held.release();
  await (await waiting).release();
  await client.quit();`;

const cases = {
  'after a wait': afterWait,
  'with a client that does not keep it alive, while a lock and a session are held': `
    await hold('held');
    await hold('session', { session: true });
    (client.stream ?? client).unref();`,
  'while a lock is held': `
    await hold('held');
    await client.quit();`,
  'while a session is held': `
    await hold('session', { session: true });
    await client.quit();`,
  'while a lock is waited for': `
    await hold('k', { renew: false });
    const waiting = hold('k', { keepMs: 60_000, waitMs: 60_000 }).catch(() => {});
    await sleep(300);
    await client.quit();
    await waiting;`,
};

for (const kind of KINDS) {
  for (const [when, statements] of Object.entries(cases))
    test(`${kind}: a process ends by itself ${when}`, async () => {
      await server.redis.flushall();
      await run(kind, [server.address], statements);
    });

  test(`${kind}: a process with a cluster's client ends by itself after a wait`, () =>
    run(kind, cluster.addresses, afterWait));

  test(`${kind}: a server that dies for good leaves no rejection unhandled`, async (t) => {
    const mortal = await startServer((end) => t.after(end));
    await mortal.call('LOCK.ACQUIRE taken other PX 60000');
    const dies = run(
      kind,
      [mortal.address],
      `
      const held = await hold('held', { leaseMs: 1500 });
      const session = await hold('session', { session: true, leaseMs: 1500 });
      await hold('taken', { waitMs: 6000 }).catch(() => {});
      if (!held.lost || !session.lost) throw new Error('the loss is not told');
      if (outages.length === 0) throw new Error('the outage is not told');
      client.disconnect();`,
    );
    await mortal.untilWaiting(1, 'taken');
    await mortal.stop();
    await dies;
  });
}
