"""The driver of the conformance suite for threads: see docs/internals/client-tests.md."""

import json
import math
import os
import queue
import sys
import threading
import time

from orders import (
    Boom,
    Observer,
    Storm,
    acquired,
    client,
    described,
    limit,
    options,
    say,
    seconds,
    settings,
    state,
    texts,
)
from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

import redislock
from redislock._errors import refused


class Driver:
    def __init__(self):
        self.locks = {}
        # The latest grant of each lock.
        self.grants = {}
        self.orders = {}
        self.waits = {}
        self.connected = threading.Event()
        self.refusal = None

    def run(self):
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] in ("connect", "lock"):
                self.obey(order)
            elif order.get("lock") in self.orders:
                self.orders[order["lock"]].put(order)
            else:
                if order["do"] == "acquire":
                    self.waits[order["id"]] = threading.Event()
                threading.Thread(target=self.obey, args=(order,), daemon=True).start()

    def obey(self, order):
        try:
            reply = getattr(self, order["do"])(order)
        except Exception as error:
            reply = described(error)
        say(id=order["id"], **reply)

    def connect(self, order):
        def make():
            made = client(order, (Redis, Sentinel, RedisCluster, ClusterNode))
            self.client = made
            self.made = redislock.Locks(made, observer=Observer(self.locks), **settings(order))
            self.connected.set()

        def make_cluster():
            # redis-py's client of a cluster connects when it is made.
            while not self.connected.is_set():
                try:
                    make()
                except Exception as error:
                    self.refusal = refused(error)
                    if self.refusal is not None:
                        self.connected.set()
                    time.sleep(0.1)

        if order["cluster"]:
            threading.Thread(target=make_cluster, daemon=True).start()
        else:
            make()
        return {"ok": True}

    def lock(self, order):
        name = order["lock"]
        if not self.connected.wait(10):
            return {
                "error": "unavailable",
                "text": "redis-py's client of the cluster can't be made",
            }
        if self.refusal is not None:
            # A program has this error where it makes redis-py's client, before it has locks.
            return {"ok": True}
        reentrant = {"reentrant": True} if order.get("reentrant") else {}
        self.locks[name] = self.made.lock(
            order["keys"],
            on_lost=lambda _: say(event="lost", lock=name),
            **options(order),
            **reentrant,
        )
        if reentrant:
            # All orders in one thread, which counts its holds.
            self.orders[name] = queue.Queue()
            threading.Thread(target=self.serve, args=(name,), daemon=True).start()
        return {"ok": True}

    def serve(self, name):
        while True:
            self.obey(self.orders[name].get())

    def acquire(self, order):
        if self.refusal is not None:
            raise self.refusal
        cancel = self.waits.get(order["id"])
        grant = self.locks[order["lock"]].acquire(cancel=cancel, **limit(order))
        if grant is not None:
            self.grants[order["lock"]] = grant
        return acquired(grant)

    def entered(self, order):
        """Return what the guarded block enters."""
        if self.refusal is not None:
            raise self.refusal
        lock = self.locks[order["lock"]]
        if order["wait_ms"] is None:
            return lock
        grant = lock.acquire(**limit(order))
        if grant is None:
            raise redislock.NotAcquired("not in time")
        return grant

    def block(self, order):
        with self.entered(order) as grant:
            self.grants[order["lock"]] = grant
            say(event="in", lock=order["lock"])
            time.sleep(order["work_ms"] / 1000)
            if order["fail"] is not None:
                raise Boom(order["fail"])
        return {"ok": True, "fence": grant.fence}

    def write(self, order):
        """Write the fence to a list until the lock is lost."""
        with self.entered(order) as grant:
            while not grant.lost:
                self.client.rpush(order["list"], grant.fence)
                time.sleep(0.002)
        return {"ok": True}

    def storm(self, order):
        storm, lock = Storm(order), self.locks[order["lock"]]

        def acquires():
            while storm.goes_on():
                wait, began = storm.wait(), time.monotonic()
                try:
                    grant = lock.acquire(wait)
                except redislock.Unavailable:
                    grant = None
                storm.ended(wait, began)
                if grant is not None:
                    time.sleep(0.001)
                    began = time.monotonic()
                    grant.release()
                    storm.released(began)

        threads = [threading.Thread(target=acquires) for _ in range(order["tasks"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return storm.reply()

    def cancel(self, order):
        self.waits[order["of"]].set()
        return {"ok": True}

    def release(self, order):
        if self.refusal is not None:
            raise self.refusal
        return {"ok": self.held(order).release()}

    def held(self, order):
        grant = self.grants.get(order["lock"])
        if grant is None:
            raise redislock.NotHeld("never acquired")
        return grant

    def release_all(self, order):
        return {"ok": True, "count": self.made.release_all()}

    def extend(self, order):
        return {"ok": self.held(order).extend(seconds(order["lease_ms"]))}

    def left(self, order):
        grant = self.grants.get(order["lock"])
        return {"ok": True, "ms": 0 if grant is None else math.ceil(grant.left() * 1000)}

    def owned(self, order):
        grant = self.grants.get(order["lock"])
        return {"ok": grant is not None and grant.owned()}

    def state(self, order):
        return state(self.grants.get(order["lock"]))

    def texts(self, order):
        lock = self.locks[order["lock"]]
        return texts(lock, self.made, lock._options, self.grants.get(order["lock"]))


Driver().run()
# Held locks stay held, because nothing is cleaned up.
os._exit(0)
