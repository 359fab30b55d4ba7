import type { Link, Wire, Word } from './connection.js';
import { backendOf, Locks as LocksOfLink, type LocksOptions } from './locks.js';
import { slotOf } from './slot.js';
import { ignore } from './time.js';

export * from './index.js';

/** Part of node-redis in use. Its own types differ by version, modules and protocol. */
interface Connection {
  readonly isOpen: boolean;
  readonly isReady?: boolean | undefined;
  readonly _keyPrefix?: string | Buffer | undefined;
  connect(): Promise<unknown>;
  destroy?(): unknown;
  disconnect?(): unknown;
  unref?(): void;
  on(event: string, listener: (error: Error) => void): unknown;
}
type Listener = (message: string) => void;
type Words = (string | Buffer)[];
type SocketOptions = { readonly host?: string; readonly port?: number; readonly path?: string };
export interface NodeRedisClient extends Connection {
  readonly options?: { readonly socket?: object } | undefined;
  duplicate(overrides?: object): NodeRedisClient;
  sendCommand(words: Words): Promise<unknown>;
  subscribe(channel: string, listener: Listener): Promise<unknown>;
}
export interface NodeRedisCluster extends Connection {
  readonly masters: readonly unknown[];
  readonly slots: readonly unknown[];
  duplicate(overrides?: object): NodeRedisCluster;
  sendCommand(key: string, isReadonly: boolean, words: Words): Promise<unknown>;
  sSubscribe(channel: string, listener: Listener): Promise<unknown>;
}
export interface NodeRedisSentinel extends Connection {
  getSentinelNode(): unknown;
  duplicate(overrides?: object): NodeRedisSentinel;
  sendCommand(isReadonly: boolean, words: Words): Promise<unknown>;
  subscribe(channel: string, listener: Listener): Promise<unknown>;
}
type Client = NodeRedisClient | NodeRedisCluster | NodeRedisSentinel;

const isCluster = (client: Client): client is NodeRedisCluster => 'masters' in client;
const isSentinel = (client: Client): client is NodeRedisSentinel => 'getSentinelNode' in client;

function send(client: Client, key: string, words: Word[]): Promise<unknown> {
  if (isCluster(client)) {
    // node-redis fails with a TypeError where no node serves a slot.
    if (!client.slots[slotOf(key)]) return Promise.reject(new Error('no node serves the slot of the key'));
    return client.sendCommand(key, false, words);
  }
  return isSentinel(client) ? client.sendCommand(false, words) : client.sendCommand(words);
}

/** Longest silence of a node's connection in a cluster, after which node-redis replaces it. */
const SILENCE_MS = 60_000;

const CLOSE_CHECK_MS = 250;

/** Makes a client that fails at once, and leaves every further attempt to the library. */
function duplicateOf(client: Client, timeoutMs: number): Client {
  const socket = { reconnectStrategy: false, connectTimeout: timeoutMs };
  if (isCluster(client)) {
    const { defaults } = (client as { _options?: { defaults?: { socket?: object } } })._options ?? {};
    const bounded = { ...defaults, socket: { ...defaults?.socket, ...socket, socketTimeout: SILENCE_MS } };
    return client.duplicate({ minimizeConnections: true, clientSideCache: undefined, defaults: bounded });
  }
  if (isSentinel(client)) return client.duplicate({ maxCommandRediscovers: 0, clientSideCache: undefined });
  return client.duplicate({
    socket: { ...client.options?.socket, ...socket, socketTimeout: undefined },
    disableOfflineQueue: true,
    commandsQueueMaxLength: undefined,
    clientSideCache: undefined,
  });
}

/** Closes a client. One that is connecting is closed once it has its socket. */
function close(client: Client) {
  const destroy = () => {
    if (client.isOpen) void Promise.resolve(client.destroy ? client.destroy() : client.disconnect?.()).catch(ignore);
  };
  destroy();
  for (const event of ['connect', 'ready']) client.on(event, destroy);
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

function wireTo(client: Client, isClosed: () => boolean, timeoutMs: number, ended: () => void): Wire {
  const own = duplicateOf(client, timeoutMs);
  // The client of a cluster has no event for its end in every version.
  const watch = isCluster(client) ? setInterval(() => isClosed() && shut(), CLOSE_CHECK_MS).unref() : undefined;
  let listener: { client: NodeRedisClient; ready: Promise<unknown>; hasSubscribed: boolean } | undefined;

  /** Connection that listens for messages. Sentinel's and a cluster's clients have their own. */
  function listening(missed: () => void) {
    const each = duplicateOf(client, timeoutMs) as NodeRedisClient;
    const self = { client: each, hasSubscribed: false };
    const over = () => {
      if (listener?.client === each) listener = undefined;
      close(each);
      if (self.hasSubscribed) missed();
    };
    const ready = open(each, over);
    ready.catch(over);
    return Object.assign(self, { ready });
  }

  function shut() {
    clearInterval(watch);
    close(own);
    if (listener) close(listener.client);
  }

  return {
    ready: open(own, ended),
    send: (key, words) => send(own, key, words),
    async subscribe(channel, heard, missed) {
      if (isCluster(own)) return own.sSubscribe(channel, heard);
      if (isSentinel(own)) return own.subscribe(channel, heard);
      const each = (listener ??= listening(missed));
      await each.ready;
      await each.client.subscribe(channel, heard);
      each.hasSubscribed = true;
    },
    close: shut,
  };
}

function addressOf(client: Client): string {
  if (isCluster(client)) return 'the cluster';
  if (isSentinel(client)) return 'the primary';
  const { host = 'localhost', port = 6379, path } = (client.options?.socket ?? {}) as SocketOptions;
  return path ?? `${host}:${port}`;
}

function linkTo(client: Client): Link {
  // A client that never got ready isn't closed: the library's own connections tell why they fail.
  const isReady = () => (isCluster(client) ? client.masters.length > 0 : client.isReady === true);
  let wasReady = isReady();
  for (const event of ['connect', 'ready']) client.on(event, () => (wasReady ||= isReady()));
  return {
    get open() {
      return client.isOpen || !wasReady;
    },
    prefix: String(client._keyPrefix ?? ''),
    cluster: isCluster(client),
    failsOver: isCluster(client) || isSentinel(client),
    address: addressOf(client),
    connect: (timeoutMs, ended) => wireTo(client, () => wasReady && !client.isOpen, timeoutMs, ended),
    onClose(listener) {
      for (const event of ['end', 'disconnect']) client.on(event, listener);
    },
  };
}

const isClient = (it: unknown): it is Client =>
  typeof it === 'object' && it !== null && 'isOpen' in it && 'duplicate' in it && 'sendCommand' in it;

/**
 * Factory of locks over a client of node-redis, for one server, for Sentinel or for a cluster.
 */
export class Locks extends LocksOfLink {
  constructor(client: NodeRedisClient | NodeRedisCluster | NodeRedisSentinel, options: LocksOptions = {}) {
    if (!isClient(client)) throw new TypeError('client: expected a client of node-redis');
    super(backendOf(linkTo(client), options.commandTimeoutMs), options.observer);
  }
}
