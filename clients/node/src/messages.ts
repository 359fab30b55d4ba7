/** Messages by which the server says whose turn it is. */

import { randomBytes } from 'node:crypto';

import type { Line } from './connection.js';
import { NoReply, noReply, replyCode } from './errors.js';
import type { Node, Servers } from './servers.js';
import { slotOf } from './slot.js';
import { Bell, ignore, now, unlessAborted, within } from './time.js';

/** Pause before another subscription to a channel whose slot has moved. */
const MOVED_MS = 50;

/** Hash tags, one for each slot of a cluster. */
const tags: string[] = [];
let lastTag = 0;

export class Messages {
  readonly #servers: Servers;
  readonly #id = randomBytes(8).toString('hex');
  readonly #bells = new Map<string, Bell>();
  /** Listeners by the name of their node. */
  readonly #listeners = new Map<string, Listener>();
  #last = 0;

  constructor(servers: Servers) {
    this.#servers = servers;
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
    if (!this.#servers.link.isCluster) return `redis-lock:${this.#id}`;
    const slot = slotOf(key);
    while (tags[slot] === undefined) tags[slotOf(String((lastTag += 1)))] ??= String(lastTag);
    return `redis-lock:${this.#id}:{${tags[slot]}}`;
  }

  /** Waits until it is worthwhile to ask again: for the message, or until the time is over. */
  async hear(key: string, bell: Bell, until: number, signal: AbortSignal | undefined) {
    const node = this.#servers.node(key);
    if (!node) return;
    const channel = this.channel(key);
    const listener = this.#listener(node);
    if (listener.hears(channel)) {
      if (!(await bell.wait(until - now(), signal))) listener.check();
      return;
    }
    // A message may have been missed, so the caller asks again at once.
    try {
      const subscribes = unlessAborted(listener.subscribe(channel), signal);
      await within(subscribes, until - now(), noReply);
    } catch (error) {
      // The next QUEUE tells whether the server lives.
      if (error instanceof NoReply) return;
      if (replyCode(error) !== 'MOVED') throw error;
      await bell.wait(Math.min(MOVED_MS, until - now()), signal);
    }
  }

  #listener(node: Node): Listener {
    const known = this.#listeners.get(node.name);
    if (known) return known;
    const listener = new Listener(this.#servers, node, this.#heard, () => {
      if (this.#listeners.get(node.name) === listener) this.#listeners.delete(node.name);
      // Messages may have been missed.
      this.#bells.forEach((bell) => bell.ring());
    });
    this.#listeners.set(node.name, listener);
    return listener;
  }

  readonly #heard = (message: string) => this.#bells.get(message)?.ring();
}

/** A connection to one server for the messages to waiters. */
class Listener {
  readonly #servers: Servers;
  readonly #line: Line;
  readonly #heard: (message: string) => void;
  readonly #channels = new Set<string>();
  readonly #subscribing = new Map<string, Promise<void>>();
  #isChecking = false;

  constructor(servers: Servers, node: Node, heard: (message: string) => void, ended: () => void) {
    this.#servers = servers;
    this.#heard = heard;
    this.#line = servers.open(node, ended);
  }

  hears(channel: string): boolean {
    return this.#channels.has(channel);
  }

  /** Subscribes, once for all that need the channel at the same time. */
  subscribe(channel: string): Promise<void> {
    const known = this.#subscribing.get(channel);
    if (known) return known;
    const subscribes = this.#subscribe(channel).finally(() => this.#subscribing.delete(channel));
    this.#subscribing.set(channel, subscribes);
    return subscribes;
  }

  async #subscribe(channel: string) {
    await this.#replied(
      this.#line.open().then(() => this.#line.wire.subscribe(channel, this.#heard)),
    );
    this.#channels.add(channel);
  }

  /** Looks whether the connection lives, after a time in which no message came. */
  check() {
    if (this.#isChecking) return;
    this.#isChecking = true;
    const checks = this.#replied(this.#line.wire.ping());
    checks.finally(() => (this.#isChecking = false)).catch(ignore);
  }

  /** Closes the connection if there is no reply. */
  async #replied(work: Promise<unknown>) {
    try {
      await within(work, this.#servers.attemptMs, noReply, true);
    } catch (error) {
      if (replyCode(error) === undefined) this.#line.close();
      throw error;
    }
  }
}
