/** Locks over a client of node-redis. */

import type { Wire } from './connection.js';
import { ATTEMPT_MS, connected, Locks as LocksOfLink, type LocksOptions } from './locks.js';
import type { Word } from './options.js';
import type { Link, Node } from './servers.js';
import { slotOf } from './slot.js';
import { ignore } from './time.js';

export * from './index.js';

/** Part of node-redis in use. Its own types differ by version, modules and protocol. */
export interface NodeRedis {
  readonly isOpen: boolean;
  connect(): Promise<unknown>;
  duplicate(overrides?: any): any;
  sendCommand(...words: any[]): Promise<unknown>;
  on(event: string, listener: (error: Error) => void): unknown;
}
interface Client extends NodeRedis {
  readonly isReady?: boolean;
  readonly options?: { readonly socket?: SocketOptions };
  readonly _keyPrefix?: string | Buffer;
  destroy?(): unknown;
  disconnect?(): unknown;
  unref?(): void;
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
  sSubscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
}
interface Cluster extends Client {
  readonly masters: readonly unknown[];
  readonly slots: readonly ({ readonly master: { readonly address: string } } | undefined)[];
  readonly _options?: { readonly defaults?: { readonly socket?: SocketOptions } };
  nodeClient(node: unknown): Client | Promise<Client>;
}
interface SocketOptions {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
}

const isCluster = (client: Client): client is Cluster => 'masters' in client;
const isSentinel = (client: Client) => 'getSentinelNode' in client;

/** Longest silence of a node's connection in a cluster, after which node-redis replaces it. */
const SILENCE_MS = 60_000;
/** Time between two looks whether a client was closed. */
const CLOSE_CHECK_MS = 250;

/** Makes a client that fails at once, and leaves every further attempt to the library. */
function duplicateOf(client: Client, attemptMs: number): Client {
  const socket = { reconnectStrategy: false, connectTimeout: attemptMs };
  if (isCluster(client)) {
    const { defaults } = client._options ?? {};
    const bounded = {
      ...defaults,
      socket: { ...defaults?.socket, ...socket, socketTimeout: SILENCE_MS },
    };
    return client.duplicate({
      minimizeConnections: true,
      clientSideCache: undefined,
      defaults: bounded,
    });
  }
  if (isSentinel(client))
    return client.duplicate({ maxCommandRediscovers: 0, clientSideCache: undefined });
  return client.duplicate({
    socket: { ...client.options?.socket, ...socket, socketTimeout: undefined },
    disableOfflineQueue: true,
    commandsQueueMaxLength: undefined,
    clientSideCache: undefined,
  });
}

/** Opens a client, and calls `ended` once when it is over. */
async function open(client: Client, ended: () => void) {
  let isOver = false;
  let reason: unknown;
  const over = () => {
    if (!isOver) ended();
    isOver = true;
  };
  client.unref?.();
  client.on('end', over);
  client.on('error', (error) => {
    reason = error;
    if (!client.isOpen) over();
  });
  try {
    await client.connect();
  } catch (error) {
    throw reason ?? error;
  }
}

/**
 * Returns a function that closes a client. One that is connecting closes once it has its socket.
 */
function closing(own: Client, ready: Promise<unknown>): () => void {
  let isConnected = false;
  let isClosed = false;
  const end = () => {
    if (isConnected && isClosed && own.isOpen)
      void Promise.resolve(own.destroy ? own.destroy() : own.disconnect?.()).catch(ignore);
  };
  const connected = () => {
    isConnected = true;
    end();
  };
  own.on('connect', connected);
  ready.then(connected, ignore);
  return () => {
    isClosed = true;
    end();
  };
}

function send(client: Client, key: string, words: Word[]): Promise<unknown> {
  if (isCluster(client)) {
    // node-redis fails with a TypeError where no node serves a slot.
    if (!client.slots[slotOf(key)])
      return Promise.reject(new Error('no node serves the slot of the key'));
    return client.sendCommand(key, false, words);
  }
  return isSentinel(client) ? client.sendCommand(false, words) : client.sendCommand(words);
}

/** A wire, and the client of a cluster that it is, which knows the nodes. */
interface NodeRedisWire extends Wire {
  readonly cluster: Cluster | undefined;
}

function wireOf(own: Client, ended: () => void): NodeRedisWire {
  const ready = open(own, ended);
  const close = closing(own, ready);
  // The slot of a shard channel has moved to another node.
  own.on('sharded-channel-moved', close);
  return {
    cluster: isCluster(own) ? own : undefined,
    ready,
    send: (key, words) => send(own, key, words),
    subscribe: (channel, heard) =>
      channel.endsWith('}') ? own.sSubscribe(channel, heard) : own.subscribe(channel, heard),
    ping: () => send(own, '', ['PING']),
    close,
  };
}

/** A wire to a node, whose client the client of the cluster makes when it is first used. */
function wireToNode(making: Promise<Client>, attemptMs: number, ended: () => void): Wire {
  let wire: Wire | undefined;
  let isClosed = false;
  const ready = making.then((client) => {
    wire = wireOf(duplicateOf(client, attemptMs), ended);
    if (isClosed) wire.close();
    return wire.ready;
  });
  return {
    ready,
    send: (key, words) => wire!.send(key, words),
    subscribe: (channel, heard) => wire!.subscribe(channel, heard),
    ping: () => wire!.ping(),
    close() {
      isClosed = true;
      wire?.close();
    },
  };
}

function nodeOf(cluster: Cluster, key: string, attemptMs: number): Node | undefined {
  const master = cluster.slots[slotOf(key)]?.master;
  if (!master) return undefined;
  const client = async () => cluster.nodeClient(master);
  return { name: master.address, opens: (ended) => wireToNode(client(), attemptMs, ended) };
}

function addressOf(client: Client): string {
  if (isCluster(client)) return 'the cluster';
  if (isSentinel(client)) return 'the primary';
  const { host = 'localhost', port = 6379, path } = client.options?.socket ?? {};
  return path ?? `${host}:${port}`;
}

function linkTo(client: Client, attemptMs: number): Link {
  // A client that never got ready isn't closed: the library's own connections tell why they fail.
  const isReady = () => (isCluster(client) ? client.masters.length > 0 : client.isReady === true);
  let wasReady = isReady();
  for (const event of ['connect', 'ready']) client.on(event, () => (wasReady ||= isReady()));
  const name = addressOf(client);
  const opens = (ended: () => void) => wireOf(duplicateOf(client, attemptMs), ended);
  return {
    get isOpen() {
      return client.isOpen || !wasReady;
    },
    prefix: String(client._keyPrefix ?? ''),
    isCluster: isCluster(client),
    name,
    opens,
    node(wire, key) {
      if (!isCluster(client)) return { name, opens };
      const { cluster } = (wire ?? {}) as Partial<NodeRedisWire>;
      return cluster && nodeOf(cluster, key, attemptMs);
    },
    onClose(listener) {
      for (const event of ['end', 'disconnect']) client.on(event, listener);
      // Sentinel's client has no event for its end, and in version 4 a cluster's has none.
      if (isSentinel(client) || !client.destroy)
        setInterval(() => wasReady && !client.isOpen && listener(), CLOSE_CHECK_MS).unref();
    },
  };
}

const isClient = (it: unknown): it is Client =>
  typeof it === 'object' &&
  it !== null &&
  'isOpen' in it &&
  'duplicate' in it &&
  'sendCommand' in it;

/** Factory of locks over a client of node-redis, for one server, for Sentinel or for a cluster. */
export class Locks extends LocksOfLink {
  constructor(client: NodeRedis, options: LocksOptions = {}) {
    if (!isClient(client)) throw new TypeError('client: expected a client of node-redis');
    // Another server may have taken over, so the library soon looks for it.
    const failoverMs = isCluster(client) || isSentinel(client) ? ATTEMPT_MS : Infinity;
    super(...connected((attemptMs) => linkTo(client, attemptMs), failoverMs, options));
  }
}
