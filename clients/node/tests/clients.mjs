// Connected clients of each kind, to a server or a cluster, for the driver and the tests.

import { Cluster, Redis } from 'ioredis';
import { createClient, createCluster } from 'redis';

const address = (server) => {
  const [host, port] = server.split(':');
  return { host, port: Number(port) };
};

const make = {
  ioredis: (servers, cluster) => (cluster ? new Cluster(servers.map(address)) : new Redis(address(servers[0]))),
  'node-redis'(servers, cluster) {
    if (!cluster) return createClient({ socket: address(servers[0]) });
    return createCluster({ rootNodes: servers.map((server) => ({ socket: address(server) })) });
  },
};

export async function connect(kind, servers, cluster = false) {
  const client = make[kind](servers, cluster);
  // These tests kill servers. The promise of a command reports its failure, so ignore the event.
  client.on('error', () => {});
  if (kind === 'node-redis') await client.connect();
  return client;
}
