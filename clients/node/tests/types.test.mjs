// The types in a strict project, with each version of the clients, and `await using` at run time.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { packageFolder, project } from './package.mjs';
import { startServer } from './server.mjs';

let server;
before(async () => (server = await startServer()));
after(() => server.stop());

const strict =
  '--strict --target es2022 --lib es2022,esnext.disposable --types node --skipLibCheck';
const typed = { typescript: 'typescript', '@types/node': '@types/node' };

/** Makes a project with a file of `types`, and compiles that. */
function compiled(file, installed, options) {
  const made = project({ ...installed, ...typed });
  cpSync(join(import.meta.dirname, 'types', file), join(made.folder, 'try.mts'));
  const tsc = join(packageFolder, 'node_modules/typescript/bin/tsc');
  const words = [tsc, ...`${strict} ${options} try.mts`.split(' ')];
  const { status, stdout } = spawnSync(process.execPath, words, {
    cwd: made.folder,
    encoding: 'utf8',
  });
  assert.equal(status, 0, stdout);
  return made;
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
  for (const [resolution, module] of [
    ['nodenext', 'nodenext'],
    ['bundler', 'esnext'],
  ]) {
    test(`the types fit ${name}, found by ${resolution}`, { timeout: 120_000 }, () => {
      const options = `--noEmit --module ${module} --moduleResolution ${resolution}`;
      compiled(`${file}.ts`, installed, options).remove();
    });
  }
}

test(
  '`await using` releases, and tells of the loss and of the error of its block',
  { timeout: 120_000 },
  () => {
    const { folder, remove } = compiled('disposed.ts', { ioredis: 'ioredis' }, '--module nodenext');
    const words = ['try.mjs', server.url];
    const said = execFileSync(process.execPath, words, { cwd: folder, encoding: 'utf8' });
    assert.equal(said, 'all is well\n');
    remove();
  },
);

test('the package says the version of the module', () => {
  const manifest = readFileSync(join(packageFolder, '../../Cargo.toml'), 'utf8');
  const { version } = JSON.parse(readFileSync(join(packageFolder, 'package.json'), 'utf8'));
  assert.equal(version, /^version = "(.+)"$/m.exec(manifest)[1]);
});
