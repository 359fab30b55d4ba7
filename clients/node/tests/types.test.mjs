// The types in a strict project, with each version of the clients, and `await using` at run time.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { packageFolder, project } from './package.mjs';
import { startServer } from './server.mjs';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

const strict = [
  '--strict',
  '--target',
  'es2022',
  '--lib',
  'es2022,esnext.disposable',
  '--types',
  'node',
  '--skipLibCheck',
];
const typed = { typescript: 'typescript', '@types/node': '@types/node' };

function compile(folder, files, ...options) {
  const words = [
    join(packageFolder, 'node_modules/typescript/bin/tsc'),
    ...strict,
    ...options,
    ...files,
  ];
  const { status, stdout } = spawnSync(process.execPath, words, { cwd: folder, encoding: 'utf8' });
  assert.equal(status, 0, stdout);
}

const versions = [
  ['ioredis 6', 'ioredis', { ioredis: 'ioredis' }],
  ['ioredis 5', 'ioredis', { ioredis: 'ioredis-5' }],
  ['node-redis 6', 'node-redis', { redis: 'redis' }],
  ['node-redis 5', 'node-redis', { redis: 'redis-5' }],
  ['node-redis 4', 'node-redis', { redis: 'redis-4' }],
  ["npm's redlock", 'redlock', { ioredis: 'ioredis', redis: 'redis' }],
];
for (const [name, file, installed] of versions) {
  for (const resolution of ['nodenext', 'bundler']) {
    test(`the types fit ${name}, found by ${resolution}`, { timeout: 120_000 }, () => {
      const { folder, remove } = project({ ...installed, ...typed });
      cpSync(join(import.meta.dirname, 'types', `${file}.ts`), join(folder, 'try.ts'));
      const module = resolution === 'bundler' ? 'esnext' : resolution;
      compile(folder, ['try.ts'], '--noEmit', '--module', module, '--moduleResolution', resolution);
      remove();
    });
  }
}

const disposed = `
import { Redis } from 'ioredis';
import { LockLostError, Locks } from '@redis-lock/client/ioredis';
const redis = new Redis(process.argv[2]!);
const lock = new Locks(redis).lock('k');
const freed = async () => { if (await redis.exists('k')) throw new Error('it is still held'); };
{
  await using grant = await lock.acquire();
  if ((await redis.exists('k')) !== 1) throw new Error('it is not held');
}
await freed();
async function caught(work: () => Promise<void>): Promise<any> {
  try { await work(); } catch (error) { return error; }
}
const lost = await caught(async () => { await using grant = await lock.acquire(); await redis.del('k'); });
if (!(lost instanceof LockLostError)) throw new Error('the loss is not told');
const plain = await caught(async () => { await using grant = await lock.acquire(); throw new RangeError('mine'); });
if (!(plain instanceof RangeError)) throw new Error('the error of the block is gone');
await freed();
const both = await caught(async () => { await using grant = await lock.acquire(); await redis.del('k'); throw new RangeError('mine'); });
if (!(both.error instanceof LockLostError && both.suppressed instanceof RangeError)) throw new Error('not both are told');
{
  await using grant = await lock.acquire();
  await grant!.release();
}
console.log('all is well');
redis.disconnect();
`;

test(
  '`await using` releases, and tells of the loss and of the error of its block',
  { timeout: 120_000 },
  () => {
    const { folder, remove } = project({ ioredis: 'ioredis', ...typed });
    writeFileSync(join(folder, 'package.json'), '{"type": "module"}');
    writeFileSync(join(folder, 'try.ts'), disposed);
    compile(folder, ['try.ts'], '--module', 'nodenext');
    const said = execFileSync(process.execPath, ['try.js', server.url], {
      cwd: folder,
      encoding: 'utf8',
    });
    assert.equal(said, 'all is well\n');
    remove();
  },
);

test('the package says the version of the module', () => {
  const manifest = readFileSync(join(packageFolder, '../../Cargo.toml'), 'utf8');
  const { version } = JSON.parse(readFileSync(join(packageFolder, 'package.json'), 'utf8'));
  assert.equal(version, /^version = "(.+)"$/m.exec(manifest)[1]);
});
