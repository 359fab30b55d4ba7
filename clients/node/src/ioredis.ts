/** Locks over a client of ioredis. */

import { type Cluster, type ClusterNode, Command, type Redis, type RedisOptions } from 'ioredis';

import type { Wire } from './connection.js';
import { ATTEMPT_MS, connected, Locks as LocksOfLink, type LocksOptions } from './locks.js';
import type { Link, Node } from './servers.js';
import { slotOf } from './slot.js';

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

const duplicateOf = (client: Redis, attemptMs: number): Redis =>
  client.duplicate({
    ...settings(attemptMs),
    lazyConnect: true,
    enableOfflineQueue: false,
    retryStrategy: () => null,
  });

const duplicateOfCluster = (client: Cluster, attemptMs: number): Cluster =>
  client.duplicate(nodesOf(client), {
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

/**
 * Returns a cluster's seeds and the other nodes that the client knows, because the seeds may be
 * gone.
 */
function nodesOf(client: Cluster): ClusterNode[] {
  const { startupNodes } = client as unknown as { startupNodes: ClusterNode[] };
  return [
    ...startupNodes,
    ...client.nodes().map(({ options: { host, port } }) => ({ host, port })),
  ];
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

/** A wire, and the client of a cluster that it is, which knows the nodes. */
interface IoredisWire extends Wire {
  readonly cluster: Cluster | undefined;
}

function wireOf(own: Client, ended: () => void): IoredisWire {
  unref(own);
  own.once('end', ended);
  return {
    cluster: isCluster(own) ? own : undefined,
    ready: opened(own),
    send(key, [name, ...args]) {
      const command = new Command(name as string, args, { replyEncoding: 'utf8' });
      // ioredis doesn't know the command, and takes its node from these.
      command.getKeys = () => [key];
      return own.sendCommand(command) as Promise<unknown>;
    },
    subscribe: (channel, heard) => subscribe(own as Redis, channel, heard),
    ping: () => own.ping(),
    close: () => own.disconnect(),
  };
}

/** Subscribes on a node's connection, which ends if the slot of the channel moves. */
async function subscribe(own: Redis, channel: string, heard: (message: string) => void) {
  const event = isShardChannel(channel) ? 'smessage' : 'message';
  if (own.listenerCount(event) === 0) {
    own.on(event, (_channel, message) => heard(message));
    // ioredis 5 takes the message of a moved slot for a fault.
    for (const end of ['moved', 'error']) own.on(end, () => own.disconnect());
  }
  await (isShardChannel(channel) ? own.ssubscribe(channel) : own.subscribe(channel));
}

const isShardChannel = (channel: string) => channel.endsWith('}');

function nodeOf(client: Cluster, key: string, attemptMs: number): Node | undefined {
  const address = client.slots[slotOf(key)]?.[0];
  const node = client.nodes('master').find((each) => addressOf(each) === address);
  return (
    node && { name: addressOf(node), opens: (ended) => wireOf(duplicateOf(node, attemptMs), ended) }
  );
}

function linkTo(client: Client, attemptMs: number): Link {
  const name = isCluster(client) ? 'the cluster' : (client.options.name ?? addressOf(client));
  const opens = (ended: () => void) =>
    wireOf(
      isCluster(client) ? duplicateOfCluster(client, attemptMs) : duplicateOf(client, attemptMs),
      ended,
    );
  return {
    get isOpen() {
      return client.status !== 'end';
    },
    prefix: client.options.keyPrefix ?? '',
    isCluster: isCluster(client),
    name,
    opens,
    node(wire, key) {
      if (!isCluster(client)) return { name, opens };
      const { cluster } = (wire ?? {}) as Partial<IoredisWire>;
      return cluster && nodeOf(cluster, key, attemptMs);
    },
    onClose: (listener) => void client.on('end', listener),
  };
}

const isClient = (it: unknown): it is Client =>
  typeof it === 'object' && it !== null && 'status' in it && 'isCluster' in it && 'duplicate' in it;

/** Factory of locks over a client of ioredis, for one server, for Sentinel or for a cluster. */
export class Locks extends LocksOfLink {
  constructor(client: Redis | Cluster, options: LocksOptions = {}) {
    if (!isClient(client)) throw new TypeError('client: expected a Redis or Cluster of ioredis');
    // Another server may have taken over, so the library soon looks for it.
    const failsOver = isCluster(client) || client.options.sentinels != null;
    const failoverMs = failsOver ? ATTEMPT_MS : Infinity;
    super(...connected((attemptMs) => linkTo(client, attemptMs), failoverMs, options));
  }
}
