import type { Link, Turns } from './link.js';
import { Locks as LocksOfLink } from './lock.js';
import { ignore } from './time.js';

export type { Lock, LockOptions } from './lock.js';
export * from './options.js';

/** Part of node-redis in use. Its own types differ by version, modules and protocol. */
interface Connection {
  readonly isOpen: boolean;
  readonly _keyPrefix?: string | Buffer | undefined;
  connect(): Promise<unknown>;
  destroy?(): void;
  disconnect(): unknown;
  on(event: string, listener: () => void): unknown;
}
type Listener = (message: string) => void;
export interface NodeRedisClient extends Connection {
  readonly options?: { readonly socket?: object } | undefined;
  duplicate(overrides?: object): NodeRedisClient;
  sendCommand(words: string[]): Promise<unknown>;
  subscribe(channel: string, listener: Listener): Promise<unknown>;
}
export interface NodeRedisCluster extends Connection {
  readonly masters: unknown;
  duplicate(): NodeRedisCluster;
  sendCommand(key: string, isReadonly: boolean, words: string[]): Promise<unknown>;
  sSubscribe(channel: string, listener: Listener): Promise<unknown>;
}
type Client = NodeRedisClient | NodeRedisCluster;

const send = (client: Client, key: string, words: string[]) =>
  'masters' in client ? client.sendCommand(key, false, words) : client.sendCommand(words);

/** Makes another client. It has no socket timeout, because a listener or a session may be idle. */
const another = (client: NodeRedisClient) =>
  client.duplicate({ socket: { ...client.options?.socket, socketTimeout: undefined } });

function linkTo(client: Client): Link {
  const made = new Set<Connection>();
  /** Connections that node-redis is opening. If destroyed now, they could keep their sockets. */
  const opening = new WeakSet<Connection>();
  let listener: Promise<NodeRedisClient> | undefined;
  let turns: Turns | undefined;

  /** Closes a connection, or leaves the close to `opened`. */
  function close(each: Connection) {
    made.delete(each);
    if (!each.isOpen || opening.has(each)) return;
    if (each.destroy) each.destroy();
    else void each.disconnect();
  }

  /** Ends the opening of a connection, and closes it if `close` was called meanwhile. */
  function opened(each: Connection) {
    opening.delete(each);
    if (!made.has(each)) close(each);
  }

  const closed = () => new Error('the client is closed');

  async function connect<C extends Connection>(each: C, connected: () => void): Promise<C> {
    // The client was closed while a reply was in flight, so `end` would miss this connection.
    if (!client.isOpen) throw closed();
    made.add(each);
    opening.add(each);
    each.on('ready', connected);
    for (const event of ['ready', 'error']) each.on(event, () => opened(each));
    each.on('reconnecting', () => opening.add(each));
    await each.connect().finally(() => opened(each));
    if (!made.has(each)) throw closed();
    return each;
  }

  /**
   * Connects a listener. If it closes for good, by its reconnect strategy or with the client, the
   * next subscription makes another one.
   */
  function listen(each: NodeRedisClient, listening: Turns): Promise<NodeRedisClient> {
    const listens = connect(each, () => listening.missed());
    const ended = () => {
      if (listener !== listens) return;
      listener = undefined;
      close(each);
      listening.missed();
    };
    each.on('error', () => each.isOpen || ended());
    each.on('end', ended);
    listens.catch(ended);
    return listens;
  }

  /** Closes all connections made here, and wakes the waiters, which then find the client closed. */
  function end() {
    made.forEach(close);
    turns?.missed();
  }

  client.on('end', end);
  client.on('disconnect', end);
  return {
    get open() {
      return client.isOpen;
    },
    prefix: String(client._keyPrefix ?? ''),
    cluster: 'masters' in client,
    send: (key, words) => send(client, key, words),
    async subscribe(channel, listening) {
      turns = listening;
      if ('masters' in client) return client.sSubscribe(channel, turns.heard);
      listener ??= listen(another(client), listening);
      return (await listener).subscribe(channel, turns.heard);
    },
    own(connected) {
      const own = 'masters' in client ? client.duplicate() : another(client);
      const ready = connect(own, connected);
      ready.catch(ignore);
      return { send: async (key, words) => send(await ready, key, words), close: () => close(own) };
    },
  };
}

/** Factory of locks over a connected client of node-redis, for one server or a cluster. */
export class Locks extends LocksOfLink {
  constructor(client: NodeRedisClient | NodeRedisCluster) {
    super(linkTo(client));
  }
}
