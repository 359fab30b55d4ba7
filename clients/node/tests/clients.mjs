// Clients of each kind, to a server, a primary behind Sentinel or a cluster, for the driver and the
// tests.

import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster, createSentinel } from 'redis';

const address = (server) => {
  const [host, port] = server.split(':');
  return { host, port: Number(port) };
};

const make = {
  ioredis(servers, { cluster, sentinel, ...user }) {
    const nodes = servers.map(address);
    if (cluster) return new Cluster(nodes, { redisOptions: user });
    return new Redis(
      sentinel ? { sentinels: nodes, name: sentinel, ...user } : { ...nodes[0], ...user },
    );
  },
  'node-redis'(servers, { cluster, sentinel, socket, ...user }) {
    const nodes = servers.map(address);
    if (cluster)
      return createCluster({ rootNodes: nodes.map((socket) => ({ socket })), defaults: user });
    if (sentinel)
      return createSentinel({ name: sentinel, sentinelRootNodes: nodes, nodeClientOptions: user });
    return createClient({ socket: { ...nodes[0], ...socket }, ...user });
  },
};

/**
 * Makes a client that begins to connect. Options are `cluster`, `sentinel`, and those of the
 * client.
 */
export function begin(kind, servers, options = {}) {
  const client = make[kind](servers, options);
  // These tests kill servers. The promise of a command reports its failure, so ignore the event.
  client.on('error', () => {});
  const connected = kind === 'node-redis' ? client.connect() : Promise.resolve();
  connected.catch(() => {});
  return { client, connected };
}

export async function connect(kind, servers, cluster = false, options = {}) {
  const { client, connected } = begin(kind, servers, { cluster, ...options });
  await connected;
  return client;
}

/** Appends to a list. */
export const push = (client, list, word) =>
  'rPush' in client ? client.rPush(list, word) : client.rpush(list, word);
