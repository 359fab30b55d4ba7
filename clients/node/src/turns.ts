import { randomBytes } from 'node:crypto';

import type { Connection, Link } from './connection.js';
import { outageIn } from './failures.js';
import { slotOf } from './slot.js';
import { backgroundPause } from './time.js';

/** Time from a failed subscription to the next one. */
const PAUSE_MS = 1000;

/** Hash tags, one for each slot of a cluster. */
const tags: string[] = [];
let lastTag = 0;

/** Messages by which the server says whose turn it is. */
export class Turns {
  readonly #id = randomBytes(8).toString('hex');
  readonly #bells = new Map<string, () => void>();
  #lastMessage = 0;
  /** Channels that are subscribed, or are being subscribed. */
  readonly #channels = new Map<string, Promise<unknown> | 'subscribed'>();

  /** Returns the channel for a key as it is sent. In a cluster, its hash tag puts it in the key's slot. */
  channel({ cluster }: Link, key: string): string {
    if (!cluster) return `redis-lock:${this.#id}`;
    const slot = slotOf(key);
    while (tags[slot] === undefined) tags[slotOf(String(++lastTag))] ??= String(lastTag);
    return `redis-lock:${this.#id}:{${tags[slot]}}`;
  }

  /** Adds a waiter, and returns its message. Any subscriber can read that, so it is not the token. */
  add(ring: () => void): string {
    const message = String(++this.#lastMessage);
    this.#bells.set(message, ring);
    return message;
  }

  remove(message: string) {
    this.#bells.delete(message);
  }

  /**
   * Subscribes to a channel unless it is subscribed. Earlier messages are not received. In an
   * outage it fails a second late, so that no waiter subscribes again at once.
   */
  listen(connection: Connection, channel: string): Promise<unknown> | undefined {
    const known = this.#channels.get(channel);
    if (known) return known === 'subscribed' ? undefined : known;
    const listens = connection.subscribe(channel, this.#heard, this.missed).catch(failLater);
    this.#channels.set(channel, listens);
    listens.then(
      () => this.#channels.get(channel) === listens && this.#channels.set(channel, 'subscribed'),
      () => this.#channels.get(channel) === listens && this.#channels.delete(channel),
    );
    return listens;
  }

  readonly #heard = (message: string) => this.#bells.get(message)?.();

  /** Forgets all subscriptions after their connection ended, and wakes every waiter. */
  readonly missed = () => {
    this.#channels.clear();
    this.#bells.forEach((ring) => ring());
  };
}

async function failLater(error: unknown): Promise<never> {
  if (outageIn(error, '') !== undefined) await backgroundPause(PAUSE_MS);
  throw error;
}
