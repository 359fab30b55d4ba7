// Servers with the module, or a cluster of three. REDIS_LOCK_RIG names the program that starts them.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Redis } from 'ioredis';

const PATIENCE_MS = 20_000;

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

/**
 * Starts servers by an order of tests/rig/src/main.rs. They end with this process, or when stopped.
 */
async function start(order) {
  const rig = spawn(process.env.REDIS_LOCK_RIG, ['serve'], { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = once(rig, 'exit');
  const lines = createInterface(rig.stdout);
  rig.stdin.write(`${order}\n`);
  const [reply] = await Promise.race([once(lines, 'line'), once(lines, 'close')]);
  assert(reply?.startsWith('ok '), `${order}: ${reply}`);
  const stop = async () => {
    rig.stdin.end();
    assert.deepEqual(await ended, [0, null], 'a server crashed');
  };
  return { words: reply.split(' ').slice(1), stop };
}

function connected(port, stop) {
  const redis = new Redis(port, { maxRetriesPerRequest: null, retryStrategy: () => 50 });
  redis.on('error', () => {});
  return {
    port,
    address: `127.0.0.1:${port}`,
    url: `redis://127.0.0.1:${port}`,
    redis,
    call: (line) => redis.call(...line.split(' ')),
    stop() {
      redis.disconnect();
      return stop();
    },
  };
}

export async function startServer() {
  const { words, stop } = await start('start');
  return connected(Number(words[0]), stop);
}

/** Starts a server that speaks TLS on `port`, with a certificate in a file. */
export async function startTlsServer() {
  const { words, stop } = await start('tls');
  return { port: Number(words[1]), certificate: words[2], stop };
}

/** Starts a Sentinel that watches a primary as `mymaster`. */
export async function startSentinel(primaryPort) {
  const { words, stop } = await start(`sentinel mymaster ${primaryPort}`);
  return { port: Number(words[0]), stop };
}

export async function startCluster() {
  const { words, stop } = await start('cluster 3');
  const nodes = words.map((port) => connected(Number(port), stop));
  return {
    nodes,
    addresses: nodes.map((node) => node.address),
    stop: () => Promise.all(nodes.map((node) => node.stop())),
  };
}

/** Returns how often the server got the commands whose names begin so. */
export async function callsOf(server, command) {
  const stats = await server.redis.info('commandstats');
  const calls = stats.matchAll(new RegExp(`cmdstat_${command}\\w*:calls=(\\d+)`, 'gi'));
  return [...calls].reduce((sum, [, count]) => sum + Number(count), 0);
}

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc');

/** Collects what the program has dropped. */
export async function collect() {
  gc();
  await immediate();
}

/** Returns the number of the key's holders and waiters. */
export async function info(redis, key) {
  const flat = (await redis.call('LOCK.INFO', key)) ?? ['holders', [], 'waiters', 0];
  const of = (name) => flat[flat.indexOf(name) + 1];
  return { holders: of('holders').length, waiters: of('waiters') };
}
