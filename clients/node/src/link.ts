import { randomBytes } from 'node:crypto';
import { EventEmitter } from 'node:events';
import calculateSlot from 'cluster-key-slot';

/** Interface of a client to its locks. Each supported client has a file that implements it. */
export interface Link {
  /** False once the client was closed for good. */
  readonly open: boolean;
  /** Prefix that the client puts before every key. */
  readonly prefix: string;
  readonly cluster: boolean;
  /** Sends a command, in a cluster to the node of the key. */
  send(key: string, words: string[]): Promise<unknown>;
  subscribe(channel: string, turns: Turns): Promise<unknown>;
  /** Opens another connection with the same settings. Calls `connected` at each (re)connect. */
  own(connected: () => void): Connection;
}

export type Connection = Pick<Link, 'send'> & { close(): void };
export type Words = ReadonlyArray<string | number>;

/** Hash tags, one for each slot of a cluster. */
const tags: string[] = [];
let lastTag = 0;

/** Events of one Locks: `turn` messages, and 'missed' when messages may have been lost. */
export class Turns extends EventEmitter {
  readonly #id = randomBytes(8).toString('hex');
  readonly #channels = new Set<string>();

  /** Returns the channel for a key. In a cluster, its hash tag puts it in the key's slot. */
  channel({ cluster, prefix }: Link, key: string): string {
    if (!cluster) return `redis-lock:${this.#id}`;
    const slot = calculateSlot(prefix + key);
    while (tags[slot] === undefined) tags[calculateSlot(String(++lastTag))] ??= String(lastTag);
    return `redis-lock:${this.#id}:{${tags[slot]}}`;
  }

  /** Subscribes to a channel unless it is subscribed. Earlier messages are not received. */
  listen(link: Link, channel: string): Promise<void> | undefined {
    if (this.#channels.has(channel)) return undefined;
    return link.subscribe(channel, this).then(() => void this.#channels.add(channel));
  }

  readonly heard = (message: string) => {
    this.emit(`turn ${message}`);
  };

  /** Forgets all subscriptions after the connection was replaced, and wakes every waiter. */
  missed() {
    this.#channels.clear();
    this.emit('missed');
  }
}
