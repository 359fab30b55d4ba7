// The README as a reader follows it: an empty folder next to the clone, then each block of commands
// and code in turn.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import {
  copyFileSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { packageFolder, project as installed } from './package.mjs';
import { startCluster, startSentinel, startServer, startTlsServer } from './server.mjs';

const readme = readFileSync(join(packageFolder, 'README.md'), 'utf8');
/** Returns the blocks of code whose fence names the language, with a further word if it has one. */
const blocks = (language) =>
  [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(
    ([, text]) => text,
  );

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
  execFileSync(program, words, {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, REDIS_URL: server.url },
  });

test('the project is made, and the programs get their locks', { timeout: 300_000 }, () => {
  const [install, start] = blocks('sh');
  run('sh', ['-e', '-c', install], folder);
  const [ioredis, nodeRedis] = blocks('js');
  writeFileSync(join(project(), 'first.mjs'), ioredis);
  assert.match(run('sh', ['-e', '-c', start], project()), /^mine, with fence \d{16}\ndone\n$/);

  const [, client] = readme.match(/after `npm install (\w+)`/);
  run('npm', ['install', '--no-audit', '--no-fund', client], project());
  writeFileSync(join(project(), 'second.mjs'), nodeRedis);
  assert.match(run('node', ['second.mjs'], project()), /^mine, with fence \d{16}\n$/);

  const [typescript] = blocks('ts');
  writeFileSync(join(project(), 'third.mts'), typescript);
  const tsc = join(packageFolder, 'node_modules/typescript/bin/tsc');
  const types = join(packageFolder, 'node_modules/@types');
  const options = '--strict --skipLibCheck --target es2022 --module nodenext --types node';
  const lib = ['--lib', 'es2022,esnext.disposable', '--typeRoots', types];
  run(process.execPath, [tsc, ...options.split(' '), ...lib, 'third.mts'], project());
  assert.match(run('node', ['third.mjs'], project()), /^mine, with fence \d{16}\n$/);

  const [, required] = readme.match(/With CommonJS it is `(.+)`/);
  const made = `new Locks(new (require('ioredis').Redis)({ lazyConnect: true }))`;
  run('node', ['--input-type=commonjs', '--eval', `${required}; ${made}`], project());
});

/** Program that gets a lock with one of the clients that the README makes in three lines. */
const connected = (kind, name, addresses) => {
  const lines = addresses.reduce(
    (text, [from, to]) => text.replaceAll(from, to),
    blocks(`js ${kind}`)[0],
  );
  const [line] = lines.split('\n').filter((each) => each.startsWith(`const ${name} `));
  return `
    import { readFileSync } from 'node:fs';
    import { Cluster, Redis } from 'ioredis';
    import { createClient, createCluster, createSentinel } from 'redis';
    import { Locks } from '@redis-lock/client/${kind}';
    ${line}
    ${kind === 'node-redis' ? `await ${name}.connect();` : ''}
    await new Locks(${name}).lock('orders:42').using(({ fence }) => console.log('mine, with fence', fence));
    await (${name}.close ? ${name}.close() : ${name}.quit());`;
};

for (const kind of ['ioredis', 'node-redis']) {
  test(
    `${kind}: the lines for Sentinel, TLS and a cluster get a lock`,
    { timeout: 120_000 },
    async (t) => {
      const { folder: place, remove } = installed({ ioredis: 'ioredis', redis: 'redis' });
      t.after(remove);
      const primary = await startServer();
      t.after(primary.stop);
      const sentinel = await startSentinel(primary.port);
      t.after(sentinel.stop);
      const encrypted = await startTlsServer();
      t.after(encrypted.stop);
      copyFileSync(encrypted.certificate, join(place, 'ca.crt'));
      const cluster = await startCluster();
      t.after(cluster.stop);
      for (const [name, from, { port }] of [
        ['behindSentinel', '26379', sentinel],
        ['encrypted', '6390', encrypted],
        ['cluster', '7001', cluster.nodes[0]],
      ]) {
        writeFileSync(join(place, 'connected.mjs'), connected(kind, name, [[from, String(port)]]));
        assert.match(run('node', ['connected.mjs'], place), /^mine, with fence \d{16}\n$/, name);
      }
    },
  );
}

test('the calls of the README', () => {
  const { folder: place, remove } = installed({ ioredis: 'ioredis' });
  const program = `
    import { Redis } from 'ioredis';
    import { Locks } from '@redis-lock/client/ioredis';
    const redis = new Redis(process.env.REDIS_URL);
    const locks = new Locks(redis);
    ${blocks('js ioredis calls')[0]}
    redis.disconnect();`;
  assert.equal(run('node', ['--input-type=module', '--eval', program], place), 'true\ndone\n');
  remove();
});

for (const [runtime, command] of [
  ['Bun', /`(bun\s\S+)`/],
  ['Deno', /`(deno [^`]+)`/],
]) {
  test(`${runtime} runs the first locks`, { timeout: 60_000 }, (t) => {
    const { folder: place, remove } = installed({ ioredis: 'ioredis', redis: 'redis' });
    t.after(remove);
    const [program, ...words] = readme.match(command)[1].split(/\s+/);
    const executable = join(packageFolder, 'runtimes/node_modules/.bin', program);
    writeFileSync(join(place, 'package.json'), '{}');
    blocks('js').forEach((text) => {
      writeFileSync(join(place, 'first.mjs'), text);
      assert.match(run(executable, words, place), /^mine, with fence \d{16}\n/);
    });
  });
}

test('the observer of the README counts waits, grants and losses', { timeout: 60_000 }, () => {
  const { folder: place, remove } = installed({
    ioredis: 'ioredis',
    '@opentelemetry/api': '@opentelemetry/api',
    '@opentelemetry/sdk-metrics': '@opentelemetry/sdk-metrics',
  });
  writeFileSync(join(place, 'observer.mjs'), blocks('js otel')[0]);
  const program = `
    import { metrics } from '@opentelemetry/api';
    import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics';
    import { Redis } from 'ioredis';
    const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
    const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 60_000 });
    const provider = new MeterProvider({ readers: [reader] });
    metrics.setGlobalMeterProvider(provider);
    const { locksOf } = await import('./observer.mjs');
    const redis = new Redis(process.env.REDIS_URL);
    const locks = locksOf(redis);
    const held = await locks.lock('k', { leaseMs: 300 }).acquire();
    const next = locks.lock('k').acquire();
    const waiters = (info) => info[info.indexOf('waiters') + 1];
    while (waiters(await redis.call('LOCK.INFO', 'k')) === 0) await new Promise(setImmediate);
    await redis.del('k');
    await (await next).release();
    await new Promise((lost) => (held.signal.aborted ? lost() : held.signal.addEventListener('abort', lost)));
    await new Promise(setImmediate);
    await provider.forceFlush();
    const all = exporter.getMetrics().at(-1).scopeMetrics[0].metrics;
    const said = all.map(({ descriptor, dataPoints: [{ value, attributes }] }) => [descriptor.name, value.count ?? value, attributes.outcome]);
    console.log(JSON.stringify(said));
    redis.disconnect();
    await provider.shutdown();`;
  writeFileSync(join(place, 'watch.mjs'), program);
  const said = JSON.parse(run('node', ['watch.mjs'], place));
  remove();
  assert.deepEqual(said, [
    ['redis_lock.wait', 1, 'granted'],
    ['redis_lock.grants', 2, null],
    ['redis_lock.losses', 1, null],
  ]);
});

test('the package has the licences of the project', () => {
  const { folder: place, remove } = installed({});
  for (const name of ['LICENSE', 'LICENSE-MIT', 'LICENSE-APACHE']) {
    const packed = readFileSync(join(place, 'node_modules/@redis-lock/client', name), 'utf8');
    assert.equal(packed, readFileSync(join(packageFolder, '../..', name), 'utf8'));
  }
  remove();
});
