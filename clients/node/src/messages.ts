/** Messages by which the server says whose turn it is. */

import { randomBytes } from 'node:crypto';

import { Call, type Line, type Node } from './connection.js';
import { isPassing } from './outages.js';
import { slotOf } from './slot.js';
import { Bell, ignore, now } from './time.js';

/** Pause before another subscription to a channel, whose slot may be moving. */
const PAUSE_MS = 100;

/** Hash tags, one for each slot of a cluster. */
const tags: string[] = [];
let lastTag = 0;

/** The servers that send the messages. */
interface Places {
  readonly link: { readonly isCluster: boolean };
  readonly attemptMs: number;
  node(key: string): Node | undefined;
  open(node: Node): Line;
}

/** A connection to one server for messages, and the channels that it hears. */
interface Listener {
  readonly line: Line;
  readonly channels: Set<string>;
}

export class Messages {
  readonly #places: Places;
  readonly #id = randomBytes(8).toString('hex');
  readonly #bells = new Map<string, Bell>();
  /** Listeners by the name of their node. */
  readonly #listeners = new Map<string, Listener>();
  #last = 0;

  constructor(places: Places) {
    this.#places = places;
  }

  /**
   * Returns a message, and its bell. Any subscriber can read the message, so it isn't the token.
   */
  add(): { message: string; bell: Bell } {
    const message = String((this.#last += 1));
    const bell = new Bell();
    this.#bells.set(message, bell);
    return { message, bell };
  }

  remove(message: string) {
    this.#bells.delete(message);
  }

  /** Returns the channel for a key. In a cluster, its hash tag puts it in the key's slot. */
  channel(key: string): string {
    if (!this.#places.link.isCluster) return `redis-lock:${this.#id}`;
    const slot = slotOf(key);
    while (tags[slot] === undefined) tags[slotOf(String((lastTag += 1)))] ??= String(lastTag);
    return `redis-lock:${this.#id}:{${tags[slot]}}`;
  }

  /** Waits until it is worthwhile to ask again: for the message, or until the time is over. */
  async hear(key: string, bell: Bell, until: number, signal: AbortSignal | undefined) {
    const node = this.#places.node(key);
    if (!node) return;
    const channel = this.channel(key);
    const call = new Call('', signal);
    const { line, channels } = this.#listener(node);
    if (channels.has(channel)) {
      if (!(await bell.wait(until - now(), call))) this.#check(line);
      return;
    }
    // A message may have been missed, so the caller asks again at once.
    try {
      await line.run((wire) => wire.subscribe(channel, this.#heard), call, until - now());
      channels.add(channel);
    } catch (error) {
      if (!isPassing(error)) throw error;
      // The next QUEUE tells whether the server lives.
      await bell.wait(Math.min(PAUSE_MS, until - now()), call);
    }
  }

  /** Looks whether a connection lives, after a time in which no message came. */
  #check(line: Line) {
    line.send('', ['ping'], new Call('', undefined, true), this.#places.attemptMs).catch(ignore);
  }

  #listener(node: Node): Listener {
    const known = this.#listeners.get(node.name);
    if (known) return known;
    const listener = { line: this.#places.open(node), channels: new Set<string>() };
    this.#listeners.set(node.name, listener);
    listener.line.ended.then(() => {
      this.#listeners.delete(node.name);
      // Messages may have been missed.
      this.#bells.forEach((bell) => bell.ring());
    });
    return listener;
  }

  readonly #heard = (message: string) => this.#bells.get(message)?.ring();
}
