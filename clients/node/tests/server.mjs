// A server with the module, or a cluster of three, each server with its own port and folder.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { Redis } from 'ioredis';

const PATIENCE_MS = 20_000;
const program = process.env.REDIS_SERVER ?? 'redis-server';
const module = resolve(
  process.env.REDIS_LOCK_MODULE ?? join(import.meta.dirname, '../../../target/release/libredis_lock.so'),
);

/** Polls until the condition returns a true value, and returns that value. */
export async function until(what, isSo) {
  const deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const it = await isSo();
    if (it) return it;
    assert(performance.now() < deadline, `not within ${PATIENCE_MS} ms: ${what}`);
    await sleep(10);
  }
}

async function freePort() {
  const server = createServer();
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}

/** Starts a server, and starts it again if another process has taken the chosen port meanwhile. */
async function start(settings) {
  for (let triesLeft = 5; ; triesLeft -= 1) {
    const { child, ...server } = launch(await freePort(), settings);
    const itself = server.redis.info('server').then((fields) => fields.includes(`\nprocess_id:${child.pid}\r`));
    const ended = once(child, 'exit').then(() => false);
    const isLate = sleep(PATIENCE_MS, false, { ref: false });
    if (await Promise.race([itself, ended, isLate])) return server;
    server.stop();
    assert(triesLeft > 0, 'the server could not be started');
  }
}

function launch(port, settings) {
  const folder = mkdtempSync(join(tmpdir(), 'redis-lock-node-'));
  const words = ['--port', port, '--bind', '127.0.0.1', '--dir', folder, '--save', '', '--loadmodule', module];
  const child = spawn(program, [...words, ...settings].map(String), { stdio: 'ignore' });
  const redis = new Redis(port, { maxRetriesPerRequest: null, retryStrategy: () => 50 });
  redis.on('error', () => {});
  return {
    child,
    port,
    address: `127.0.0.1:${port}`,
    url: `redis://127.0.0.1:${port}`,
    redis,
    call: (line) => redis.call(...line.split(' ')),
    stop() {
      redis.disconnect();
      child.kill('SIGKILL');
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export const startServer = () => start([]);

/** Starts a server that speaks TLS on `port`, and writes its certificate to ca.crt in a folder. */
export async function startTlsServer(folder) {
  const [key, certificate] = [join(folder, 'server.key'), join(folder, 'ca.crt')];
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'];
  execFileSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', 1, '-keyout', key, '-out', certificate, ...subject].map(String), { stdio: 'ignore' });
  const port = await freePort();
  const files = ['--tls-cert-file', certificate, '--tls-key-file', key, '--tls-ca-cert-file', certificate];
  const server = await start(['--tls-port', port, ...files, '--tls-auth-clients', 'no']);
  return { ...server, port };
}

/** Starts a Sentinel that watches a primary as `mymaster`. */
export async function startSentinel(primaryPort) {
  const folder = mkdtempSync(join(tmpdir(), 'redis-lock-sentinel-'));
  const port = await freePort();
  const settings = join(folder, 'sentinel.conf');
  writeFileSync(settings, `port ${port}\ndir ${folder}\nsentinel monitor mymaster 127.0.0.1 ${primaryPort} 1\n`);
  const child = spawn(program, [settings, '--sentinel'], { stdio: 'ignore' });
  const redis = new Redis(port, { maxRetriesPerRequest: null, retryStrategy: () => 50 });
  redis.on('error', () => {});
  await until('the Sentinel answers', () => redis.call('SENTINEL', 'get-master-addr-by-name', 'mymaster'));
  redis.disconnect();
  return {
    port,
    stop() {
      child.kill('SIGKILL');
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export async function startCluster() {
  const busPorts = [await freePort(), await freePort(), await freePort()];
  const settings = ['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1', '--cluster-port'];
  const nodes = await Promise.all(busPorts.map((busPort) => start([...settings, busPort])));
  const starts = [0, 5461, 10923, 16384];
  for (const [i, node] of nodes.entries()) {
    await node.call(`CLUSTER ADDSLOTSRANGE ${starts[i]} ${starts[i + 1] - 1}`);
    await node.call(`CLUSTER MEET 127.0.0.1 ${nodes[0].port} ${busPorts[0]}`);
  }
  for (const node of nodes) {
    await until('the cluster is formed', async () => (await node.call('CLUSTER INFO')).includes('cluster_state:ok'));
  }
  return { nodes, addresses: nodes.map((node) => node.address), stop: () => nodes.forEach((node) => node.stop()) };
}

/** Returns the number of the key's holders and waiters. */
export async function info(redis, key) {
  const flat = (await redis.call('LOCK.INFO', key)) ?? ['holders', [], 'waiters', 0];
  const of = (name) => flat[flat.indexOf(name) + 1];
  return { holders: of('holders').length, waiters: of('waiters') };
}
