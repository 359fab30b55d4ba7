/** Locks over a client of ioredis. */

import { type Cluster, Command, type Redis, type RedisOptions } from 'ioredis';

import type { Node, Wire } from './connection.js';
import { Locks as LocksOfLink, type LocksOptions } from './locks.js';
import type { Link } from './servers.js';
import { isShardChannel, slotOf } from './slot.js';

export * from './index.js';

type Client = Redis | Cluster;

/** Delay of the system's own probes, which close an idle connection that died silently. */
const KEEP_ALIVE_MS = 15_000;

const isCluster = (client: Client): client is Cluster => client.isCluster;
const addressOf = ({ options }: Redis) => options.path ?? `${options.host}:${options.port}`;

/** Settings of a connection that fails at once, and leaves every further attempt to the library. */
const settings = (attemptMs: number): RedisOptions => ({
  connectTimeout: attemptMs,
  sentinelCommandTimeout: attemptMs,
  disconnectTimeout: 100,
  commandTimeout: undefined,
  keepAlive: KEEP_ALIVE_MS,
  enableReadyCheck: false,
  maxRetriesPerRequest: null,
  sentinelRetryStrategy: () => null,
  reconnectOnError: null,
  autoResubscribe: false,
  autoResendUnfulfilledCommands: false,
  // Closes the connection when the Sentinels name another primary.
  failoverDetector: true,
  keyPrefix: '',
});

function duplicateOf(client: Client, attemptMs: number): Client {
  if (!isCluster(client)) {
    return client.duplicate({
      ...settings(attemptMs),
      lazyConnect: true,
      enableOfflineQueue: false,
      retryStrategy: () => null,
    });
  }
  // The seeds may be gone, so the other nodes that the client knows are seeds, too.
  const known = client.nodes().map(({ options: { host, port } }) => ({ host, port }));
  const { startupNodes } = client as unknown as { startupNodes: typeof known };
  return client.duplicate([...startupNodes, ...known], {
    lazyConnect: true,
    // Without it, ioredis refuses commands while it connects to a node.
    enableOfflineQueue: true,
    enableReadyCheck: false,
    clusterRetryStrategy: () => null,
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
    slotsRefreshTimeout: Math.ceil(attemptMs / 4),
    redisOptions: { ...client.options.redisOptions, ...settings(attemptMs) },
  });
}

/** Keeps the sockets of a client from keeping the process alive. */
function unref(client: Client) {
  const unrefNode = (node: Redis) => node.on('connect', () => node.stream?.unref());
  if (isCluster(client)) client.on('+node', unrefNode);
  else unrefNode(client);
}

/** Opens a client's connection. Rejects with the reason, which ioredis reports only as an event. */
async function opened(client: Client) {
  let reason: unknown;
  client.on('error', (error) => (reason = error.lastNodeError ?? error));
  try {
    await client.connect();
  } catch (error) {
    throw reason ?? error;
  }
}

function wireOf(own: Client, ended: () => void): Wire {
  unref(own);
  own.once('end', ended);
  return {
    ready: opened(own),
    send(key, [name, ...args]) {
      const command = new Command(name as string, args, { replyEncoding: 'utf8' });
      // ioredis doesn't know the command, and takes its node from these.
      command.getKeys = () => [key];
      return own.sendCommand(command) as Promise<unknown>;
    },
    subscribe: (channel, heard) => subscribe(own as Redis, channel, heard),
    node: (key) => (isCluster(own) ? nodeOf(own, key) : undefined),
    close: () => own.disconnect(),
  };
}

/** Subscribes on a node's connection, which ends if the slot of the channel moves. */
function subscribe(own: Redis, channel: string, heard: (message: string) => void) {
  const isSharded = isShardChannel(channel);
  const event = isSharded ? 'smessage' : 'message';
  if (own.listenerCount(event) === 0) {
    own.on(event, (_channel, message) => heard(message));
    // ioredis 5 takes the message of a moved slot for a fault.
    for (const end of ['moved', 'error']) own.on(end, () => own.disconnect());
  }
  return isSharded ? own.ssubscribe(channel) : own.subscribe(channel);
}

function nodeOf(cluster: Cluster, key: string): Node | undefined {
  const address = cluster.slots[slotOf(key)]?.[0];
  const node = cluster.nodes('master').find((each) => addressOf(each) === address);
  return node && toServer(node, addressOf(node));
}

const toServer = (client: Client, name: string): Node => ({
  name,
  opens: (attemptMs, ended) => wireOf(duplicateOf(client, attemptMs), ended),
});

function linkTo(client: Client): Link {
  const name = isCluster(client) ? 'the cluster' : (client.options.name ?? addressOf(client));
  return {
    ...toServer(client, name),
    get isOpen() {
      return client.status !== 'end';
    },
    prefix: client.options.keyPrefix ?? '',
    isCluster: isCluster(client),
    failsOver: isCluster(client) || client.options.sentinels != null,
  };
}

const isClient = (it: unknown): it is Client =>
  typeof it === 'object' && it !== null && 'status' in it && 'isCluster' in it && 'duplicate' in it;

/** Factory of locks over a client of ioredis, for one server, for Sentinel or for a cluster. */
export class Locks extends LocksOfLink {
  constructor(client: Redis | Cluster, options: LocksOptions = {}) {
    if (!isClient(client)) throw new TypeError('client: expected a Redis or Cluster of ioredis');
    super(linkTo(client), options);
  }
}
