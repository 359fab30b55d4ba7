// The types in a strict project, with each version of the clients.

import assert from 'node:assert/strict';
import { cpSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { compile, packageFolder, project } from './package.mjs';

for (const [name, file, installed] of [
  ['ioredis 6', 'ioredis', { ioredis: 'ioredis' }],
  ['ioredis 5', 'ioredis', { ioredis: 'ioredis-5' }],
  ['node-redis 6', 'node-redis', { redis: 'redis' }],
  ['node-redis 5', 'node-redis', { redis: 'redis-5' }],
  ['node-redis 4', 'node-redis', { redis: 'redis-4' }],
  ["npm's redlock", 'redlock', { ioredis: 'ioredis', redis: 'redis' }],
])
  for (const [resolution, module] of [
    ['nodenext', 'nodenext'],
    ['bundler', 'esnext'],
  ])
    test(`the types fit ${name}, found by ${resolution}`, () => {
      const made = project(installed);
      cpSync(join(import.meta.dirname, 'types', `${file}.ts`), join(made.folder, 'try.mts'));
      compile(made, `--noEmit --module ${module} --moduleResolution ${resolution} try.mts`);
    });

test('the package says the version of the module', () => {
  const manifest = readFileSync(join(packageFolder, '../../Cargo.toml'), 'utf8');
  const { version } = JSON.parse(readFileSync(join(packageFolder, 'package.json'), 'utf8'));
  assert.equal(version, /^version = "(.+)"$/m.exec(manifest)[1]);
});
