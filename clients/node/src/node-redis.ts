/** Locks over a client of node-redis. */

import type { Node, Wire } from './connection.js';
import { Locks as LocksOfLink, type LocksOptions } from './locks.js';
import type { Word } from './options.js';
import type { Link } from './servers.js';
import { isShardChannel, slotOf } from './slot.js';
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
type Client = NodeRedis & Record<string, any>;

const isCluster = (client: Client) => 'masters' in client;
const isSentinel = (client: Client) => 'getSentinelNode' in client;

/** Makes a client that fails at once, and leaves every further attempt to the library. */
function duplicateOf(client: Client, attemptMs: number): Client {
  const clientSideCache = undefined;
  if (isSentinel(client)) return client.duplicate({ maxCommandRediscovers: 0, clientSideCache });
  const defaults = isCluster(client) ? client._options?.defaults : client.options;
  const socket = {
    ...defaults?.socket,
    reconnectStrategy: false,
    connectTimeout: attemptMs,
    socketTimeout: undefined,
  };
  if (isCluster(client)) {
    const bounded = { ...defaults, socket };
    return client.duplicate({ minimizeConnections: true, clientSideCache, defaults: bounded });
  }
  const queue = { disableOfflineQueue: true, commandsQueueMaxLength: undefined };
  return client.duplicate({ ...queue, socket, clientSideCache });
}

/** A duplicate of a client that is still being made. */
class Duplicate implements Wire {
  readonly ready: Promise<void>;
  readonly #ended: () => void;
  #own: Client | undefined;
  #hasSocket = false;
  #isClosed = false;

  constructor(making: Promise<Client>, attemptMs: number, ended: () => void) {
    this.#ended = ended;
    this.ready = making.then((client) => this.#open(duplicateOf(client, attemptMs)));
  }

  async #open(own: Client) {
    let reason: unknown;
    this.#own = own;
    own.unref?.();
    own.on('end', this.#ended);
    // The slot of a shard channel has moved to another node.
    own.on('sharded-channel-moved', this.#ended);
    own.on('error', (error) => {
      reason = error;
      if (!own.isOpen) this.#ended();
    });
    own.on('connect', () => this.#connected());
    try {
      if (!this.#isClosed) await own.connect();
    } catch (error) {
      throw reason ?? error;
    }
    this.#connected();
  }

  #connected() {
    this.#hasSocket = true;
    if (this.#isClosed) this.close();
  }

  async send(key: string, words: Word[]): Promise<unknown> {
    const own = this.#own!;
    if (isSentinel(own)) return own.sendCommand(false, words);
    if (!isCluster(own)) return own.sendCommand(words);
    // node-redis fails with a TypeError where no node serves a slot.
    if (!own.slots[slotOf(key)]) throw new Error('no node serves the slot of the key');
    return own.sendCommand(key, false, words);
  }

  subscribe(channel: string, heard: (message: string) => void): Promise<unknown> {
    const own = this.#own!;
    return isShardChannel(channel) ? own.sSubscribe(channel, heard) : own.subscribe(channel, heard);
  }

  node(key: string): Node | undefined {
    const own = this.#own;
    if (!own || !isCluster(own)) return undefined;
    const master = own.slots[slotOf(key)]?.master;
    return master && toServer(async () => own.nodeClient(master), master.address);
  }

  /** Closes the client. One that is connecting closes once it has its socket. */
  close() {
    this.#isClosed = true;
    const own = this.#own;
    if (!this.#hasSocket || !own?.isOpen) return;
    void Promise.resolve(own.destroy ? own.destroy() : own.disconnect?.()).catch(ignore);
  }
}

const toServer = (client: () => Promise<Client>, name: string): Node => ({
  name,
  opens: (attemptMs, ended) => new Duplicate(client(), attemptMs, ended),
});

function addressOf(client: Client): string {
  if (isCluster(client)) return 'the cluster';
  if (isSentinel(client)) return 'the primary';
  const { host = 'localhost', port = 6379, path } = client.options?.socket ?? {};
  return path ?? `${host}:${port}`;
}

function linkTo(client: Client): Link {
  // A client that never got ready isn't closed: the library's own connections tell why they fail.
  const isReady = () => (isCluster(client) ? client.masters.length > 0 : client.isReady === true);
  let wasReady = isReady();
  return {
    ...toServer(async () => client, addressOf(client)),
    get isOpen() {
      wasReady ||= isReady();
      return client.isOpen || !wasReady;
    },
    prefix: String(client._keyPrefix ?? ''),
    isCluster: isCluster(client),
    failsOver: isCluster(client) || isSentinel(client),
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
    super(linkTo(client), options);
  }
}
