// Every version of a client that the package allows, with and without a prefix, on one server and
// in a cluster.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { project } from './package.mjs';
import { startCluster, startServer } from './server.mjs';

let server;
let cluster;
before(async () => ([server, cluster] = await Promise.all([startServer(), startCluster()])));
after(() => {
  server.stop();
  cluster.stop();
});

const eachNode = (ask) => Promise.all(cluster.nodes.map(ask));

/** Program with a lock, a wait for it, several keys, a session, and a check of the keys' names. */
const program = `
  import assert from 'node:assert/strict';
  import { setTimeout as sleep } from 'node:timers/promises';
  async function tryOut(Locks, client, call) {
    const locks = new Locks(client);
    const other = new Locks(client);
    const held = await locks.lock('stock}{a}').acquire();
    assert.equal(await call('EXISTS', PREFIX + 'stock}{a}'), 1);
    assert.equal(await other.lock('stock}{a}').tryAcquire(), undefined);
    const waiting = other.lock('stock}{a}', { keepMs: 30_000 }).acquire();
    await sleep(400);
    const began = performance.now();
    await held.release();
    const next = await waiting;
    const tookMs = performance.now() - began;
    assert(tookMs < 5000, 'woken after ' + tookMs + ' ms');
    assert(next.fence > 0 && next.left() > 20_000);
    assert.equal(await next.extend(60_000), true);
    assert.equal(await next.release(), true);
    const both = await locks.lock(['{t}a', '{t}b'], { limit: 2 }).acquire();
    assert.equal(await both.release(), true);
    const tied = await locks.lock('tied', { session: true }).acquire();
    assert.equal(await tied.release(), true);
    assert.equal(await call('EXISTS', PREFIX + 'tied'), 0);
  }`;

const ioredis = `
  import { Cluster, Redis } from 'ioredis';
  import { Locks } from '@redis-lock/client/ioredis';
  const keyPrefix = PREFIX || undefined;
  const client = CLUSTER ? new Cluster(ADDRESSES, { keyPrefix }) : new Redis({ ...ADDRESSES[0], keyPrefix });
  const plain = CLUSTER ? new Cluster(ADDRESSES) : new Redis(ADDRESSES[0]);
  await tryOut(Locks, client, (name, key) => plain.exists(key));
  client.disconnect();
  plain.disconnect();`;

const nodeRedis = `
  import { createClient, createCluster } from 'redis';
  import { Locks } from '@redis-lock/client/node-redis';
  const open = async (more) => {
    const client = CLUSTER
      ? createCluster({ rootNodes: ADDRESSES.map((socket) => ({ socket })), ...more })
      : createClient({ socket: ADDRESSES[0], ...more });
    client.on('error', () => {});
    await client.connect();
    return client;
  };
  const client = await open({ ...(PREFIX ? { keyPrefix: PREFIX } : {}), ...MORE });
  const plain = await open({});
  await tryOut(Locks, client, (name, key) => plain.exists(key));
  await client.disconnect();
  await plain.disconnect();`;

const cases = [
  ['ioredis 6', { ioredis: 'ioredis' }, ioredis, ['', 'app:'], {}],
  ['ioredis 5', { ioredis: 'ioredis-5' }, ioredis, ['', 'app:'], {}],
  ['node-redis 6', { redis: 'redis' }, nodeRedis, ['', 'app:'], {}],
  ['node-redis 6, RESP2', { redis: 'redis' }, nodeRedis, [''], { RESP: 2 }],
  ['node-redis 5', { redis: 'redis-5' }, nodeRedis, [''], {}],
  ['node-redis 5, RESP3', { redis: 'redis-5' }, nodeRedis, [''], { RESP: 3 }],
  ['node-redis 4', { redis: 'redis-4' }, nodeRedis, [''], {}],
];

for (const [name, installed, statements, prefixes, more] of cases) {
  for (const prefix of prefixes) {
    for (const inCluster of [false, true]) {
      const title = `${name}${prefix && ', with a prefix'}${inCluster ? ', in a cluster' : ''}`;
      test(title, { timeout: 60_000 }, async () => {
        const { folder, remove } = project(installed);
        const addresses = inCluster ? cluster.addresses : [server.address];
        const sockets = addresses.map((address) => ({
          host: '127.0.0.1',
          port: Number(address.split(':')[1]),
        }));
        const named = { PREFIX: prefix, CLUSTER: inCluster, ADDRESSES: sockets, MORE: more };
        const constants = Object.entries(named).map(
          ([key, value]) => `const ${key} = ${JSON.stringify(value)};`,
        );
        writeFileSync(
          join(folder, 'try.mjs'),
          `${constants.join('\n')}\n${program}\n${statements}`,
        );
        await eachNode((node) => node.call('CONFIG RESETSTAT'));
        execFileSync(process.execPath, ['try.mjs'], {
          cwd: folder,
          stdio: 'pipe',
          timeout: 30_000,
        });
        // Each command went directly to the node of its key.
        for (const errors of await eachNode((node) => node.call('INFO errorstats')))
          assert.doesNotMatch(errors, /MOVED/);
        remove();
      });
    }
  }
}

test('the package is found by import and by require, and its root needs no client', () => {
  const look = (installed, type, program) => {
    const { folder, remove } = project(installed);
    const words = [`--input-type=${type}`, '--eval', program];
    execFileSync(process.execPath, words, { cwd: folder });
    remove();
  };
  const all = { ioredis: 'ioredis', redis: 'redis' };
  for (const client of ['ioredis', 'node-redis']) {
    const names = `new all.LockLostError(), all.Locks.name`;
    look(all, 'module', `import * as all from '@redis-lock/client/${client}'; ${names}`);
    const same = `if (root.LockLostError !== all.LockLostError) throw new Error('two classes');`;
    const required = `const all = require('@redis-lock/client/${client}'); ${names};`;
    look(all, 'commonjs', `${required} const root = require('@redis-lock/client'); ${same}`);
  }
  look({}, 'module', `import { LockLostError } from '@redis-lock/client'; new LockLostError();`);
});
