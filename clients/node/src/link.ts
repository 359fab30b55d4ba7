import { randomBytes } from 'node:crypto';
import { EventEmitter } from 'node:events';
import calculateSlot from 'cluster-key-slot';

/** What a lock needs of a client. Each supported client has a file that provides it. */
export interface Link {
  /** False once the client was closed for good. */
  readonly open: boolean;
  /** What the client puts before every key. */
  readonly prefix: string;
  readonly cluster: boolean;
  /** Sends a command, in a cluster to the node of the key. */
  send(key: string, words: string[]): Promise<unknown>;
  subscribe(channel: string, turns: Turns): Promise<unknown>;
  /** A connection of its own with the same settings. `connected` is called each time that it is made. */
  own(connected: () => void): Connection;
}

export type Connection = Pick<Link, 'send'> & { close(): void };
export type Words = ReadonlyArray<string | number>;

/** For each slot of a cluster a word that is in it. */
const tags: string[] = [];
let lastTag = 0;

/** Of one Locks: the messages that tell of turns, and 'missed' when some may have been lost. */
export class Turns extends EventEmitter {
  readonly #id = randomBytes(8).toString('hex');
  readonly #channels = new Set<string>();

  /** In a cluster the channel is in the slot of the key: it has a tag of that slot. */
  channel({ cluster, prefix }: Link, key: string): string {
    if (!cluster) return `redis-lock:${this.#id}`;
    const slot = calculateSlot(prefix + key);
    while (tags[slot] === undefined) tags[calculateSlot(String(++lastTag))] ??= String(lastTag);
    return `redis-lock:${this.#id}:{${tags[slot]}}`;
  }

  /** What to wait for where it doesn't listen there yet: a message before that is not heard. */
  listen(link: Link, channel: string): Promise<void> | undefined {
    if (this.#channels.has(channel)) return undefined;
    return link.subscribe(channel, this).then(() => void this.#channels.add(channel));
  }

  readonly heard = (message: string) => {
    this.emit(`turn ${message}`);
  };

  /** The connection was replaced: all is to be subscribed again. */
  missed() {
    this.#channels.clear();
    this.emit('missed');
  }
}
