// Every version of a client that the package allows, with and without a prefix, on one server and
// in a cluster.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { project } from './package.mjs';
import { KINDS, startCluster, startServer } from './server.mjs';

const [server, cluster] = await Promise.all([startServer(), startCluster()]);
const eachNode = (ask) => Promise.all(cluster.nodes.map(ask));

/** Statements with a lock, a wait for it, several keys, a session, and a check of keys' names. */
const statements = `
  import assert from 'node:assert/strict';
  import { setTimeout as sleep } from 'node:timers/promises';
  const exists = (key) => plain.exists(PREFIX + key);
  const locks = new Locks(client);
  const other = new Locks(client);
  const held = await locks.lock('stock}{a}').acquire();
  assert.equal(await exists('stock}{a}'), 1);
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
  assert.equal(await exists('tied'), 0);
  client.disconnect();
  plain.disconnect();`;

const ioredis = `
  import { Cluster, Redis } from 'ioredis';
  import { Locks } from '@redis-lock/client/ioredis';
  const open = (more) =>
    CLUSTER ? new Cluster(ADDRESSES, more) : new Redis({ ...ADDRESSES[0], ...more });
  const client = open({ keyPrefix: PREFIX || undefined });
  const plain = open({});`;

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
  const plain = await open({});`;

for (const [name, installed, opening, prefixes, more] of [
  ['ioredis 6', { ioredis: 'ioredis' }, ioredis, ['', 'app:']],
  ['ioredis 5', { ioredis: 'ioredis-5' }, ioredis, ['', 'app:']],
  ['node-redis 6', { redis: 'redis' }, nodeRedis, ['', 'app:']],
  ['node-redis 6, RESP2', { redis: 'redis' }, nodeRedis, [''], { RESP: 2 }],
  ['node-redis 5', { redis: 'redis-5' }, nodeRedis, ['']],
  ['node-redis 5, RESP3', { redis: 'redis-5' }, nodeRedis, [''], { RESP: 3 }],
  ['node-redis 4', { redis: 'redis-4' }, nodeRedis, ['']],
])
  for (const prefix of prefixes)
    for (const addresses of [[server.address], cluster.addresses]) {
      const isCluster = addresses.length > 1;
      const title = `${name}${prefix && ', with a prefix'}${isCluster ? ', in a cluster' : ''}`;
      test(title, async () => {
        const { evaluate } = project(installed);
        const sockets = addresses.map((address) => ({
          host: '127.0.0.1',
          port: Number(address.split(':')[1]),
        }));
        const named = { PREFIX: prefix, CLUSTER: isCluster, ADDRESSES: sockets, MORE: more ?? {} };
        const constants = Object.entries(named).map(
          ([key, value]) => `const ${key} = ${JSON.stringify(value)};\n`,
        );
        await eachNode((node) => node.call('CONFIG RESETSTAT'));
        evaluate(`${constants.join('')}${opening}${statements}`);
        // Each command went directly to the node of its key.
        for (const errors of await eachNode((node) => node.call('INFO errorstats')))
          assert.doesNotMatch(errors, /MOVED/);
      });
    }

test('the package is found by import and by require, and its root needs no client', () => {
  const { evaluate } = project({ ioredis: 'ioredis', redis: 'redis' });
  for (const kind of KINDS) {
    const names = `new all.LockLostError(), all.Locks.name`;
    evaluate(`import * as all from '@redis-lock/client/${kind}'; ${names}`);
    const same = `if (root.LockLostError !== all.LockLostError) throw new Error('two classes');`;
    const required = `const all = require('@redis-lock/client/${kind}'); ${names};`;
    evaluate(`${required} const root = require('@redis-lock/client'); ${same}`, 'commonjs');
  }
  project({}).evaluate(`import { LockLostError } from '@redis-lock/client'; new LockLostError();`);
});
