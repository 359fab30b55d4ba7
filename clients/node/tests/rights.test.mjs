// The library needs only the rights that docs/operate/security.md gives a service.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import { Redis } from 'ioredis';
import { createClient } from 'redis';

import { info, startServer, until } from './server.mjs';

const document = readFileSync(new URL('../../../docs/operate/security.md', import.meta.url), 'utf8');
const recipe = /^> (ACL SETUSER service .*)$/m.exec(document)[1];
const user = { username: 'service', password: 'secret' };

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

const connect = {
  ioredis: async () => new Redis({ port: server.port, enableReadyCheck: false, ...user }),
  'node-redis': () => createClient({ socket: { port: server.port }, ...user }).connect(),
};

for (const kind of ['ioredis', 'node-redis']) {
  const { Locks } = await import(`../dist/${kind}.js`);

  test(`${kind}: a service with its recipe tries, waits and is told of its turn`, { timeout: 60_000 }, async () => {
    await server.call(recipe);
    const client = await connect[kind]();
    const locks = new Locks(client);
    const held = locks.lock('orders:42');
    assert(await held.tryAcquire());
    // Without a message, the waiter would ask again after 200 s.
    const waiting = locks.acquire('orders:42', { keepMs: 600_000, leaseMs: 600_000 });
    await until('it waits', async () => (await info(server.redis, 'orders:42')).waiters === 1);
    await until('it listens', async () => (await server.redis.pubsub('CHANNELS', 'redis-lock:*')).length > 0);
    assert.equal(await held.release(), true);
    const next = await waiting;
    assert.equal(await next.extend(30_000), true);
    assert((await next.left()) > 0);
    assert.equal(await next.release(), true);
    await client.quit();
  });
}
