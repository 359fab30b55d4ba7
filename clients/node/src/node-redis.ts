import { type Link, Locks as LocksOfLink, type Rest, type Turns, channelName, ignore, words } from './lock.js';

export { Deadlock, Lock, LockLost, NotAcquired, type LockOptions, type WaitOptions } from './lock.js';

/** What is used of node-redis. Its own types differ by version, modules and protocol. */
interface Connection {
  readonly isOpen: boolean;
  readonly _keyPrefix?: string | Buffer | undefined;
  connect(): Promise<unknown>;
  destroy?(): void;
  disconnect(): unknown;
  on(event: string, listener: (...args: any[]) => void): unknown;
}
export interface NodeRedisClient extends Connection {
  duplicate(): NodeRedisClient;
  sendCommand(args: string[]): Promise<unknown>;
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
}
export interface NodeRedisCluster extends Connection {
  readonly masters: unknown;
  duplicate(): NodeRedisCluster;
  sendCommand(firstKey: string, isReadonly: boolean, args: string[]): Promise<unknown>;
  sSubscribe(channel: string, listener: (message: string) => void): Promise<unknown>;
}
type Client = NodeRedisClient | NodeRedisCluster;

const prefixed = (client: Connection, keys: readonly string[]) =>
  keys.map((key) => `${client._keyPrefix ?? ''}${key}`);

/** node-redis leaves the words of a command as they are, and asks for a key to find the node. */
function send(client: Client, verb: string, keys: readonly string[], rest: Rest): Promise<unknown> {
  const sent = prefixed(client, keys);
  const args = words(verb, sent, rest);
  return 'masters' in client ? client.sendCommand(sent[0]!, false, args) : client.sendCommand(args);
}

class NodeRedisLink implements Link {
  readonly #client: Client;
  readonly #made = new Set<Connection>();
  #listener?: Promise<NodeRedisClient>;

  constructor(client: Client) {
    this.#client = client;
    const end = () => this.#made.forEach((made) => this.#close(made));
    client.on('end', end);
    client.on('disconnect', end);
  }

  get open() {
    return this.#client.isOpen;
  }

  send(verb: string, keys: readonly string[], rest: Rest) {
    return send(this.#client, verb, keys, rest);
  }

  channel(id: string, key: string) {
    return channelName(id, 'masters' in this.#client ? prefixed(this.#client, [key])[0] : undefined);
  }

  async subscribe(channel: string, turns: Turns) {
    if ('masters' in this.#client) return this.#client.sSubscribe(channel, turns.heard);
    this.#listener ??= this.#connect(this.#client.duplicate(), () => turns.missed());
    this.#listener.catch(() => (this.#listener = undefined));
    return (await this.#listener).subscribe(channel, turns.heard);
  }

  own(connected: () => void) {
    const own = this.#client.duplicate();
    const made = this.#connect(own, connected);
    made.catch(ignore);
    return {
      send: async (verb: string, keys: readonly string[], rest: Rest) => send(await made, verb, keys, rest),
      close: () => this.#close(own),
    };
  }

  async #connect<C extends Connection>(made: C, connected: () => void): Promise<C> {
    this.#made.add(made);
    made.on('error', ignore);
    made.on('ready', connected);
    await made.connect();
    return made;
  }

  #close(made: Connection) {
    this.#made.delete(made);
    if (!made.isOpen) return;
    if (made.destroy) made.destroy();
    else void made.disconnect();
  }
}

/** Locks by way of a client of node-redis, a cluster's too. It must be connected. */
export class Locks extends LocksOfLink {
  constructor(client: NodeRedisClient | NodeRedisCluster) {
    super(new NodeRedisLink(client));
  }
}
