import calculateSlot from 'cluster-key-slot';
import { Cluster, Command, type Redis } from 'ioredis';
import { type Link, Locks as LocksOfLink, type Rest, type Turns, channelName, ignore, words } from './lock.js';

export { Deadlock, Lock, LockLost, NotAcquired, type LockOptions, type WaitOptions } from './lock.js';

type Client = Redis | Cluster;

const prefixed = (client: Client, keys: readonly string[]) => keys.map((key) => `${client.options.keyPrefix ?? ''}${key}`);

/** ioredis doesn't know these commands, so it is told which words are the keys. */
function send(client: Client, verb: string, keys: readonly string[], rest: Rest): Promise<unknown> {
  const sent = prefixed(client, keys);
  const [name, ...args] = words(verb, sent, rest);
  const command = new Command(name!, args, { replyEncoding: 'utf8' });
  command.getKeys = () => sent;
  return client.sendCommand(command) as Promise<unknown>;
}

class IoredisLink implements Link {
  readonly #client: Client;
  /** The connections that listen, by their node: one, or one for each node of a cluster. */
  readonly #listeners = new Map<string, Redis>();
  readonly #made = new Set<Client>();

  constructor(client: Client) {
    this.#client = client;
    client.once('end', () => this.#made.forEach((made) => made.disconnect()));
  }

  get open() {
    return this.#client.status !== 'end';
  }

  send(verb: string, keys: readonly string[], rest: Rest) {
    return send(this.#client, verb, keys, rest);
  }

  channel(id: string, key: string) {
    return channelName(id, this.#client instanceof Cluster ? prefixed(this.#client, [key])[0] : undefined);
  }

  subscribe(channel: string, turns: Turns): Promise<unknown> {
    if (!(this.#client instanceof Cluster)) return this.#listener('', this.#client, turns).subscribe(channel);
    const address = this.#client.slots[calculateSlot(channel)]?.[0] ?? '';
    const node = this.#client.nodes('master').find(({ options }) => `${options.host}:${options.port}` === address);
    if (!node) return Promise.reject(new Error(`no node is known for ${channel}`));
    return this.#listener(address, node, turns).ssubscribe(channel);
  }

  #listener(address: string, node: Redis, turns: Turns): Redis {
    const known = this.#listeners.get(address);
    if (known) return known;
    const listener = node.duplicate({ keyPrefix: '', lazyConnect: false, enableOfflineQueue: true, retryStrategy: () => null });
    this.#listeners.set(address, this.#add(listener));
    const heard = (_channel: string, message: string) => turns.heard(message);
    // A slot that moves away ends the subscription: begin anew, as after a lost connection.
    listener.on('message', heard).on('smessage', heard).on('moved', () => listener.disconnect());
    listener.once('end', () => {
      this.#made.delete(listener);
      this.#listeners.delete(address);
      turns.missed();
    });
    return listener;
  }

  own(connected: () => void) {
    const own = this.#add((this.#client as Redis).duplicate());
    own.on('ready', connected);
    return {
      send: (verb: string, keys: readonly string[], rest: Rest) => send(own, verb, keys, rest),
      close: () => {
        this.#made.delete(own);
        own.disconnect();
      },
    };
  }

  #add<C extends Client>(made: C): C {
    this.#made.add(made);
    made.on('error', ignore);
    return made;
  }
}

/** Locks by way of an ioredis client, a cluster's too. */
export class Locks extends LocksOfLink {
  constructor(client: Redis | Cluster) {
    super(new IoredisLink(client));
  }
}
