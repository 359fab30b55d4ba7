// The README as a reader follows it: an empty folder next to the clone, then each block of commands
// and code in turn.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { compile, packageFolder, project, temporary } from './package.mjs';
import { KINDS, startCluster, startSentinel, startServer, startTlsServer } from './server.mjs';

const readme = readFileSync(join(packageFolder, 'README.md'), 'utf8');
/** Returns the blocks of code whose fence names the language, with a further word if it has one. */
const blocks = (language) =>
  [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(
    ([, text]) => text,
  );
const GRANTED = /^mine, with fence \d{16}\n/;

const server = await startServer();
const env = { ...process.env, REDIS_URL: server.url };

test('the project is made, and the programs get their locks', () => {
  const folder = temporary();
  const cwd = join(folder, 'first-lock');
  const run = (program, words) => execFileSync(program, words, { cwd, encoding: 'utf8', env });
  symlinkSync(join(packageFolder, '../..'), join(folder, 'redis-lock'));
  const [install, start] = blocks('sh');
  execFileSync('sh', ['-e', '-c', install], { cwd: folder });
  const [ioredis, nodeRedis] = blocks('js');
  writeFileSync(join(cwd, 'first.mjs'), ioredis);
  assert.match(run('sh', ['-e', '-c', start]), /^mine, with fence \d{16}\ndone\n$/);

  const [, client] = readme.match(/after `npm install (\w+)`/);
  run('npm', ['install', '--no-audit', '--no-fund', client]);
  writeFileSync(join(cwd, 'second.mjs'), nodeRedis);
  assert.match(run('node', ['second.mjs']), GRANTED);

  const [typescript] = blocks('ts');
  writeFileSync(join(cwd, 'third.mts'), typescript);
  compile({ run }, '--module nodenext third.mts');
  assert.match(run('node', ['third.mjs']), GRANTED);

  const [, required] = readme.match(/With CommonJS it is `(.+)`/);
  const made = `new Locks(new (require('ioredis').Redis)({ lazyConnect: true }))`;
  run('node', ['--input-type=commonjs', '--eval', `${required}; ${made}`]);
});

test('the lines for Sentinel, TLS and a cluster get a lock', async () => {
  const sentinel = await startSentinel((await startServer()).port);
  const encrypted = await startTlsServer();
  const cluster = await startCluster();
  const { folder, evaluate } = project({ ioredis: 'ioredis', redis: 'redis' });
  copyFileSync(encrypted.certificate, join(folder, 'ca.crt'));
  for (const kind of KINDS)
    for (const [name, shownPort, { port }] of [
      ['behindSentinel', '26379', sentinel],
      ['encrypted', '6390', encrypted],
      ['cluster', '7001', cluster.nodes[0]],
    ]) {
      const lines = blocks(`js ${kind}`)[0].replaceAll(shownPort, String(port)).split('\n');
      const said = evaluate(`
        import { readFileSync } from 'node:fs';
        import { Cluster, Redis } from 'ioredis';
        import { createClient, createCluster, createSentinel } from 'redis';
        import { Locks } from '@redis-lock/client/${kind}';
        ${lines.find((line) => line.startsWith(`const ${name} `))}
        ${kind === 'node-redis' ? `await ${name}.connect();` : ''}
        const lock = new Locks(${name}).lock('orders:42');
        await lock.using(({ fence }) => console.log('mine, with fence', fence));
        await (${name}.close ? ${name}.close() : ${name}.quit());`);
      assert.match(said, GRANTED, `${kind}: ${name}`);
    }
});

test('the calls of the README', () => {
  const { evaluate } = project({ ioredis: 'ioredis' });
  const program = `
    import { Redis } from 'ioredis';
    import { Locks } from '@redis-lock/client/ioredis';
    const redis = new Redis(process.env.REDIS_URL);
    const locks = new Locks(redis);
    ${blocks('js ioredis calls')[0]}
    redis.disconnect();`;
  assert.equal(evaluate(program, 'module', env), 'true\ndone\n');
});

for (const [runtime, command] of [
  ['Bun', /`(bun\s\S+)`/],
  ['Deno', /`(deno [^`]+)`/],
])
  test(`${runtime} runs the first locks`, () => {
    const { folder, run } = project({ ioredis: 'ioredis', redis: 'redis' });
    const [program, ...words] = readme.match(command)[1].split(/\s+/);
    writeFileSync(join(folder, 'package.json'), '{}');
    for (const text of blocks('js')) {
      writeFileSync(join(folder, 'first.mjs'), text);
      const executable = join(packageFolder, 'runtimes/node_modules/.bin', program);
      assert.match(run(executable, words, env), GRANTED);
    }
  });

test('the observer of the README counts waits, grants and losses', () => {
  const telemetry = ['@opentelemetry/api', '@opentelemetry/sdk-metrics'];
  const installed = ['ioredis', ...telemetry].map((name) => [name, name]);
  const { folder, evaluate } = project(Object.fromEntries(installed));
  writeFileSync(join(folder, 'observer.mjs'), blocks('js otel')[0]);
  const program = `
    import { once } from 'node:events';
    import { metrics } from '@opentelemetry/api';
    import * as sdk from '@opentelemetry/sdk-metrics';
    import { Redis } from 'ioredis';
    const exporter = new sdk.InMemoryMetricExporter(sdk.AggregationTemporality.CUMULATIVE);
    const options = { exporter, exportIntervalMillis: 60_000 };
    const readers = [new sdk.PeriodicExportingMetricReader(options)];
    const provider = new sdk.MeterProvider({ readers });
    metrics.setGlobalMeterProvider(provider);
    const { locksOf } = await import('./observer.mjs');
    const redis = new Redis(process.env.REDIS_URL);
    const locks = locksOf(redis);
    const held = await locks.lock('k', { leaseMs: 300 }).acquire();
    const lost = once(held.signal, 'abort');
    const next = locks.lock('k').acquire();
    const waiters = (info) => info[info.indexOf('waiters') + 1];
    while (waiters(await redis.call('LOCK.INFO', 'k')) === 0) await new Promise(setImmediate);
    await redis.del('k');
    await (await next).release();
    await lost;
    await new Promise(setImmediate);
    await provider.forceFlush();
    for (const { descriptor, dataPoints } of exporter.getMetrics().at(-1).scopeMetrics[0].metrics) {
      const [{ value, attributes }] = dataPoints;
      console.log(descriptor.name, value.count ?? value, attributes.outcome ?? '');
    }
    redis.disconnect();
    await provider.shutdown();`;
  const said = evaluate(program, 'module', env).trim().split(/\s*\n/);
  const expected = ['redis_lock.wait 1 granted', 'redis_lock.grants 2', 'redis_lock.losses 1'];
  assert.deepEqual(said, expected);
});

test('the package has the licences of the project', () => {
  const { folder } = project({});
  for (const name of ['LICENSE', 'LICENSE-MIT', 'LICENSE-APACHE']) {
    const packed = readFileSync(join(folder, 'node_modules/@redis-lock/client', name), 'utf8');
    assert.equal(packed, readFileSync(join(packageFolder, '../..', name), 'utf8'));
  }
});
