// The calls in the tables of the migration pages, each of them run.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { createContext, runInContext } from 'node:vm';

import { Locks } from '../dist/ioredis.js';
import Redlock, { Lock } from '../dist/redlock.mjs';
import { connect } from './clients.mjs';
import { packageFolder } from './package.mjs';
import { startServer, until } from './server.mjs';

const server = await startServer();

/** Returns the codes in the cells of a column under a heading, which names it. */
function column(page, heading) {
  const lines = readFileSync(join(packageFolder, '../../docs/migrate', page), 'utf8').split('\n');
  const cells = (line) => line.split(/(?<!\\)\|/).map((cell) => cell.trim());
  const head = lines.findIndex((line) => line.startsWith('|') && cells(line).includes(heading));
  const end = lines.findIndex((line, number) => number > head && !line.startsWith('|'));
  const index = cells(lines[head]).indexOf(heading);
  const inColumn = lines.slice(head + 2, end).map((line) => cells(line)[index]);
  return [...inColumn.join('\n').matchAll(/`([^`]+)`/g)].map(([, code]) => code);
}

for (const [page, count] of [
  ['set-nx.md', 5],
  ['npm-redlock.md', 7],
]) {
  test(`the calls of ${page}`, async () => {
    const client = await connect('ioredis', [server.address]);
    const locks = new Locks(client);
    const context = createContext({ locks, lock: locks.lock('orders:42'), work: () => 'done' });
    const codes = column(page, 'Node');
    assert.equal(codes.length, count);
    for (const code of codes) {
      // A lock that a row acquires is free, and one that a row releases or extends is held.
      if (/acquire|using/i.test(code)) await locks.releaseAll();
      else if (context.grant?.lost === false && context.grant.left() === 0)
        context.grant = await context.lock.tryAcquire();
      const result = await runInContext(`(async () => { ${code} })(); `, context);
      assert.equal(result, undefined);
      if (code.startsWith('grant =')) assert(context.grant.fence > 0, code);
    }
    await locks.releaseAll();
    await client.quit();
  });
}

test('the calls of npm-redlock.md', async () => {
  const client = await connect('ioredis', [server.address]);
  const given = { settings: { retryCount: 1 }, resources: ['orders:42'], duration: 5000 };
  const context = createContext({ Redlock, Lock, client, ...given, routine: async () => 'done' });
  const run = (code) => runInContext(`(async () => ${code})()`, context);
  const codes = column('npm-redlock.md', 'call');
  assert.equal(codes.length, 14);
  for (const code of codes) {
    if (/extend|release|using/.test(code)) {
      if (context.lock?.expiration > 0) await context.lock.release();
      if (!code.startsWith('using'))
        context.lock = await run('redlock.acquire(resources, duration)');
    }
    Object.assign(context, context.lock && { value: context.lock.value, expiration: 1e15 });
    const ofRedlock = /^(acquire|extend|release|using|quit)\(/.test(code);
    const ofLock = /^\w+$/.test(code);
    const call = `${ofRedlock ? 'redlock.' : ofLock ? 'lock.' : ''}${code}`;
    const result = await run(call.replace('...', '() => {}'));
    if (result instanceof Redlock) context.redlock = result;
    if (result instanceof Lock) context.lock = result;
    if (ofLock) assert.notEqual(result, undefined, code);
  }
  assert.deepEqual(await server.info('orders:42'), { holders: 0, waiters: 0 });
  await until('it is closed', () => client.status === 'end');
});
