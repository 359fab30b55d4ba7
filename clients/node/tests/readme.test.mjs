// The README as a reader follows it: an empty folder next to the clone, then each block of commands
// and code in turn.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { packageFolder } from './package.mjs';
import { startServer } from './server.mjs';

const readme = readFileSync(join(packageFolder, 'README.md'), 'utf8');
const blocks = (language) => [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(([, text]) => text);

let server;
let folder;
before(async () => {
  server = await startServer();
  folder = mkdtempSync(join(tmpdir(), 'redis-lock-readme-'));
  symlinkSync(join(packageFolder, '../..'), join(folder, 'redis-lock'));
});
after(() => {
  server.stop();
  rmSync(folder, { recursive: true, force: true });
});

const project = () => join(folder, 'first-lock');
const run = (program, words, cwd) =>
  execFileSync(program, words, { cwd, encoding: 'utf8', env: { ...process.env, REDIS_URL: server.url } });

test('the project is made, and the programs get their locks', { timeout: 300_000 }, () => {
  const [install, start] = blocks('sh');
  run('sh', ['-e', '-c', install], folder);
  const [ioredis, nodeRedis] = blocks('js');
  writeFileSync(join(project(), 'first.mjs'), ioredis);
  assert.match(run('sh', ['-e', '-c', start], project()), /^mine, with fence \d{16}\ndone\n$/);

  run('npm', ['install', '--no-audit', '--no-fund', ...readme.match(/after `npm install (\w+)`/).slice(1)], project());
  writeFileSync(join(project(), 'second.mjs'), nodeRedis);
  assert.match(run('node', ['second.mjs'], project()), /^mine, with fence \d{16}\n$/);

  const [typescript] = blocks('ts');
  writeFileSync(join(project(), 'third.mts'), typescript);
  const tsc = join(packageFolder, 'node_modules/typescript/bin/tsc');
  const types = join(packageFolder, 'node_modules/@types');
  const options = ['--strict', '--skipLibCheck', '--target', 'es2022', '--module', 'nodenext', '--types', 'node'];
  const lib = ['--lib', 'es2022,esnext.disposable', '--typeRoots', types];
  run(process.execPath, [tsc, ...options, ...lib, 'third.mts'], project());
  assert.match(run('node', ['third.mjs'], project()), /^mine, with fence \d{16}\n$/);

  const [, required] = readme.match(/With CommonJS it is `(.+)`/);
  run('node', ['--input-type=commonjs', '--eval', `${required}; new Locks({ options: {}, on() {} });`], project());
});
