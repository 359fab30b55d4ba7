// Servers with the module, or a cluster of three. REDIS_LOCK_RIG names the program that starts them.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import { Redis } from 'ioredis';

import { connect } from './clients.mjs';
import { startProxy } from './proxy.mjs';

const PATIENCE_MS = 20_000;

export const KINDS = ['ioredis', 'node-redis'];

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

/** Returns the error of a call. */
export const failureOf = (call) =>
  call.then(
    () => assert.fail('it has not failed'),
    (error) => error,
  );

/**
 * Starts servers by an order of tests/rig/src/main.rs, and returns the words of its reply. They end
 * after the tests of the file or of `ends`, or when stopped.
 */
async function start(order, ends = after) {
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
  ends(stop);
  return { words: reply.split(' ').slice(1), stop };
}

function connected(port, stop, ends = after) {
  const redis = new Redis(port, { maxRetriesPerRequest: null, retryStrategy: () => 50 });
  redis.on('error', () => {});
  ends(() => redis.disconnect());
  const call = (line) => redis.call(...line.split(' '));
  return {
    port,
    address: `127.0.0.1:${port}`,
    url: `redis://127.0.0.1:${port}`,
    redis,
    stop,
    call,
    connections: async () => Number(/connected_clients:(\d+)/.exec(await call('INFO clients'))[1]),
    /** Returns how often the server got the commands whose names begin so. */
    async callsOf(command) {
      const stats = await call('INFO commandstats');
      const calls = stats.matchAll(new RegExp(`cmdstat_${command}\\w*:calls=(\\d+)`, 'gi'));
      return [...calls].reduce((sum, [, count]) => sum + Number(count), 0);
    },
    /** Returns the number of the key's holders and waiters. */
    async info(key) {
      const flat = (await redis.call('LOCK.INFO', key)) ?? ['holders', [], 'waiters', 0];
      const of = (name) => flat[flat.indexOf(name) + 1];
      return { holders: of('holders').length, waiters: of('waiters') };
    },
    untilWaiting(count, key = 'k') {
      return until(`${count} wait`, async () => (await this.info(key)).waiters === count);
    },
    /** Waits until the key has neither a holder nor a waiter. */
    untilFree: (key = 'k') =>
      until('it is free', async () => (await redis.call('LOCK.INFO', key)) === null),
  };
}

export async function startServer(ends) {
  const { words, stop } = await start('start', ends);
  return connected(Number(words[0]), stop, ends);
}

/** Starts a server that speaks TLS on `port`, with a certificate in a file. */
export async function startTlsServer() {
  const { words } = await start('tls');
  return { port: Number(words[1]), certificate: words[2] };
}

/** Starts a Sentinel that watches a primary as `mymaster`. */
export async function startSentinel(primaryPort) {
  const { words } = await start(`sentinel mymaster ${primaryPort}`);
  return { port: Number(words[0]) };
}

export async function startCluster() {
  const { words, stop } = await start('cluster 3');
  const nodes = words.map((port) => connected(Number(port), stop));
  return { nodes, addresses: nodes.map((node) => node.address) };
}

/**
 * Defines a test for each kind of client. Its client goes to the server, which is empty, through a
 * proxy.
 */
export function checkEach(server, what, work) {
  for (const kind of KINDS)
    test(`${kind}: ${what}`, async (t) => {
      await server.redis.flushall();
      const proxy = await startProxy(server);
      const client = await connect(kind, [`127.0.0.1:${proxy.port}`]);
      const { Locks } = await import(`../dist/${kind}.js`);
      const locksWith = (options) => new Locks(client, options);
      try {
        await work({ t, kind, client, proxy, Locks, locksWith, locks: locksWith() });
      } finally {
        client.disconnect();
        proxy.stop();
      }
    });
}

/** Collects what `process` warns of until the test ends. */
export function warnings(t) {
  const texts = [];
  const listen = ({ message }) => texts.push(message);
  process.on('warning', listen);
  t.after(() => process.off('warning', listen));
  return texts;
}

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc');

/** Collects what the program has dropped. */
export async function collect() {
  gc();
  await immediate();
}
