import calculateSlot from 'cluster-key-slot';
import { Cluster, Command, type Redis } from 'ioredis';
import type { Link, Turns } from './link.js';
import { Locks as LocksOfLink } from './lock.js';
import { ignore } from './time.js';

export type { Lock, LockOptions } from './lock.js';
export * from './options.js';

type Client = Redis | Cluster;

/** Sends a command, and names the key that selects the node: ioredis doesn't know the command. */
function send(client: Client, key: string, [name, ...args]: string[]): Promise<unknown> {
  const command = new Command(name!, args, { replyEncoding: 'utf8' });
  command.getKeys = () => [key];
  return client.sendCommand(command) as Promise<unknown>;
}

const addressOf = ({ options }: Redis) => `${options.host}:${options.port}`;

function nodeOf(client: Client, channel: string): Redis {
  if (!(client instanceof Cluster)) return client;
  const address = client.slots[calculateSlot(channel)]?.[0];
  const node = client.nodes('master').find((each) => addressOf(each) === address);
  if (!node) throw new Error(`no node is known for ${channel}`);
  return node;
}

function linkTo(client: Client): Link {
  const made = new Set<Client>();
  /** Connections that listen for messages, by the address of their node. */
  const listeners = new Map<string, Redis>();
  client.on('end', () => made.forEach((each) => each.disconnect()));

  function add<C extends Client>(each: C): C {
    made.add(each);
    each.on('error', ignore).once('end', () => made.delete(each));
    return each;
  }

  function listener(node: Redis, turns: Turns): Redis {
    const address = addressOf(node);
    const known = listeners.get(address);
    if (known) return known;
    const retryStrategy = () => null;
    const each = add(node.duplicate({ keyPrefix: '', lazyConnect: false, enableOfflineQueue: true, retryStrategy }));
    listeners.set(address, each);
    const heard = (_channel: string, message: string) => turns.heard(message);
    // A slot that moves ends its subscriptions here, so start anew like after a lost connection.
    each.on('message', heard).on('smessage', heard).on('moved', () => each.disconnect());
    each.once('end', () => {
      listeners.delete(address);
      turns.missed();
    });
    return each;
  }

  return {
    get open() {
      return client.status !== 'end';
    },
    prefix: client.options.keyPrefix ?? '',
    cluster: client instanceof Cluster,
    send: (key, words) => send(client, key, words),
    async subscribe(channel, turns) {
      const each = listener(nodeOf(client, channel), turns);
      return client instanceof Cluster ? each.ssubscribe(channel) : each.subscribe(channel);
    },
    own(connected) {
      // Commands before the connection is ready are queued, because a single try isn't repeated.
      const queues = { enableOfflineQueue: true };
      const own = client instanceof Cluster ? client.duplicate([], queues) : client.duplicate(queues);
      add<Client>(own).on('ready', connected);
      return { send: (key, words) => send(own, key, words), close: () => own.disconnect() };
    },
  };
}

/** Factory of locks over a client of ioredis, for one server or a cluster. */
export class Locks extends LocksOfLink {
  constructor(client: Redis | Cluster) {
    super(linkTo(client));
  }
}
