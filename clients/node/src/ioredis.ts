import { type Cluster, type ClusterNode, Command, type Redis, type RedisOptions } from 'ioredis';
import type { Link, Wire, Word } from './connection.js';
import { backendOf, Locks as LocksOfLink, type LocksOptions } from './locks.js';
import { slotOf } from './slot.js';
import { ignore } from './time.js';

export * from './index.js';

type Client = Redis | Cluster;

const isCluster = (client: Client): client is Cluster => client.isCluster;
const addressOf = ({ options }: Redis) => options.path ?? `${options.host}:${options.port}`;

/** Sends a command, and names the key that selects the node: ioredis doesn't know the command. */
function send(client: Client, key: string, [name, ...args]: Word[]): Promise<unknown> {
  const command = new Command(name as string, args, { replyEncoding: 'utf8' });
  command.getKeys = () => [key];
  return client.sendCommand(command) as Promise<unknown>;
}

/** Settings of a connection that fails at once, and leaves every further attempt to the library. */
const settings = (timeoutMs: number): RedisOptions => ({
  lazyConnect: true,
  connectTimeout: timeoutMs,
  sentinelCommandTimeout: timeoutMs,
  disconnectTimeout: 100,
  commandTimeout: undefined,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  maxRetriesPerRequest: null,
  retryStrategy: () => null,
  sentinelRetryStrategy: () => null,
  reconnectOnError: null,
  autoResendUnfulfilledCommands: false,
  // Closes the connection when the Sentinels name another primary.
  failoverDetector: true,
  keyPrefix: '',
});

const duplicateOf = (client: Client, timeoutMs: number): Client =>
  isCluster(client)
    ? client.duplicate(nodesOf(client), {
        lazyConnect: true,
        // Without it, ioredis refuses commands while it connects to a node.
        enableOfflineQueue: true,
        enableReadyCheck: false,
        clusterRetryStrategy: () => null,
        retryDelayOnFailover: 0,
        retryDelayOnClusterDown: 0,
        slotsRefreshTimeout: Math.ceil(timeoutMs / 4),
        redisOptions: { ...client.options.redisOptions, ...nodeSettings(timeoutMs) },
      })
    : client.duplicate(settings(timeoutMs));

/** Returns a cluster's seeds and the other nodes that the client knows, because the seeds may be gone. */
function nodesOf(client: Cluster): ClusterNode[] {
  const { startupNodes } = client as unknown as { startupNodes: ClusterNode[] };
  return [...startupNodes, ...client.nodes().map(({ options: { host, port } }) => ({ host, port }))];
}

function nodeSettings(timeoutMs: number) {
  const { lazyConnect, retryStrategy, enableOfflineQueue, ...rest } = settings(timeoutMs);
  return rest;
}

/** Keeps the sockets of a client from keeping the process alive. */
function unref(client: Client) {
  const unrefNode = (node: Redis) => node.on('connect', () => node.stream?.unref());
  if (isCluster(client)) client.on('+node', unrefNode);
  else unrefNode(client);
}

/** Node of a channel's slot. In a cluster a shard channel is heard at its own node only. */
function nodeOf(client: Client, channel: string): Redis {
  if (!isCluster(client)) return client;
  const address = client.slots[slotOf(channel)]?.[0];
  const node = client.nodes('master').find((each) => addressOf(each) === address);
  if (!node) throw new Error(`no node is known for ${channel}`);
  return node;
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

function wireTo(client: Client, timeoutMs: number, ended: () => void): Wire {
  const own = duplicateOf(client, timeoutMs);
  /** Connections that listen for messages, by the address of their node. */
  const listeners = new Map<string, Redis>();
  /** Listeners that have subscribed to a channel. */
  const subscribed = new WeakSet<Redis>();

  function listener(node: Redis, heard: (message: string) => void, missed: () => void): Redis {
    const address = addressOf(node);
    const known = listeners.get(address);
    if (known) return known;
    const each = node.duplicate({ ...settings(timeoutMs), lazyConnect: false, enableOfflineQueue: true });
    listeners.set(address, each);
    unref(each);
    // A slot that moves ends its subscriptions here, so start anew like after a lost connection.
    each.on('error', ignore).on('moved', () => each.disconnect());
    each.on('message', (_channel, message) => heard(message)).on('smessage', (_channel, message) => heard(message));
    each.once('end', () => {
      listeners.delete(address);
      if (subscribed.has(each)) missed();
    });
    return each;
  }

  unref(own);
  own.once('end', () => {
    close();
    ended();
  });
  function close() {
    own.disconnect();
    listeners.forEach((each) => each.disconnect());
  }

  return {
    ready: opened(own),
    send: (key, words) => send(own, key, words),
    async subscribe(channel, heard, missed) {
      const each = listener(nodeOf(own, channel), heard, missed);
      await (isCluster(own) ? each.ssubscribe(channel) : each.subscribe(channel));
      subscribed.add(each);
    },
    close,
  };
}

function linkTo(client: Client): Link {
  return {
    get open() {
      return client.status !== 'end';
    },
    prefix: client.options.keyPrefix ?? '',
    cluster: isCluster(client),
    failsOver: isCluster(client) || client.options.sentinels != null,
    address: isCluster(client) ? 'the cluster' : client.options.name ?? addressOf(client),
    connect: (timeoutMs, ended) => wireTo(client, timeoutMs, ended),
    onClose: (listener) => void client.on('end', listener),
  };
}

const isClient = (it: unknown): it is Client =>
  typeof it === 'object' && it !== null && 'status' in it && 'isCluster' in it && 'duplicate' in it;

/** Factory of locks over a client of ioredis, for one server, for Sentinel or for a cluster. */
export class Locks extends LocksOfLink {
  constructor(client: Redis | Cluster, options: LocksOptions = {}) {
    if (!isClient(client)) throw new TypeError('client: expected a Redis or Cluster of ioredis');
    super(backendOf(linkTo(client), options.commandTimeoutMs), options.observer);
  }
}
