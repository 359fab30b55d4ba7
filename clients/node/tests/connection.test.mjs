// Failures of connections.

import assert from 'node:assert/strict';
import { createConnection, createServer } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Redis } from 'ioredis';

import { Connection } from '../dist/connection.js';
import { Locks } from '../dist/ioredis.js';
import { startServer, until } from './server.mjs';

test('a command without an answer names its whole time, even if connecting took most of it', async () => {
  const silent = { send: () => new Promise(() => {}), close() {} };
  const link = { open: true, address: 'the server', connect: () => ({ ...silent, ready: sleep(250) }), onClose() {} };
  const connection = new Connection(link, 1000, () => {});
  const message = 'no answer from the server within 0.3 s';
  await assert.rejects(connection.send('k', [], 300), { message });
  // The wire is ready now.
  await assert.rejects(connection.send('k', [], 300), { message });
});

test('commands of an old connection that arrive late spare the next grant', async () => {
  const server = await startServer();
  const held = { isArmed: false, pieces: [] };
  // It holds back what follows a LOCK.ACQUIRE on one connection, also when its client has closed it.
  const proxy = createServer((near) => {
    const far = createConnection(server.port, '127.0.0.1');
    let isHeld = false;
    near.on('data', (bytes) => {
      if (held.isArmed && bytes.includes('LOCK.ACQUIRE')) {
        [held.isArmed, isHeld] = [false, true];
        held.deliver = () => far.write(Buffer.concat(held.pieces));
      }
      if (isHeld) held.pieces.push(bytes);
      else far.write(bytes);
    });
    far.on('data', (bytes) => {
      if (isHeld) held.replies = `${held.replies ?? ''}${bytes}`;
      else near.write(bytes);
    });
    for (const end of [near, far]) end.on('error', () => {});
  });
  await new Promise((listening) => proxy.listen(0, '127.0.0.1', listening));
  const client = new Redis(proxy.address().port);
  try {
    const locks = new Locks(client, { commandTimeoutMs: 500 });
    const lock = locks.lock('k', { leaseMs: 60_000 });
    await lock.acquire();
    await lock.release();
    held.isArmed = true;
    await assert.rejects(lock.tryAcquire(), { name: 'UnavailableError' });
    await until('it is cleaned up', async () =>
      (await server.redis.info('commandstats')).includes('cmdstat_lock.release:calls=2,'));
    // The confirmation is on its way to the client.
    await sleep(100);
    assert(await lock.acquire());
    held.deliver();
    await until('the commands are carried out', () => held.replies?.split('\r\n').length > 3);
    assert.equal(await lock.owned(), true);
    await lock.release();
  } finally {
    client.disconnect();
    proxy.close();
    server.stop();
  }
});
