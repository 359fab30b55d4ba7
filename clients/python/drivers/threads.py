"""The driver of the conformance suite for threads: see docs/internals/clients.md."""

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
                    self.waits[order["id"]] = order["lock"]
                threading.Thread(target=self.obey, args=(order, True), daemon=True).start()

    def obey(self, order, stays=False):
        try:
            reply = getattr(self, order["do"])(order)
        except Exception as error:
            reply = described(error)
        say(id=order["id"], **reply)
        if stays and order["do"] == "acquire":
            # The lease is renewed as long as the thread that acquired it lives.
            threading.Event().wait()

    def connect(self, order):
        def make():
            made = client(order, (Redis, Sentinel, RedisCluster, ClusterNode))
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
            return {"ok": True, "token": "none"}
        lock = self.made.lock(
            order["keys"], on_lost=lambda _: say(event="lost", lock=name), **options(order)
        )
        self.locks[name] = lock
        if order.get("reentrant"):
            # All orders in one thread, which is the owner.
            self.orders[name] = queue.Queue()
            threading.Thread(target=self.serve, args=(name,), daemon=True).start()
        return {"ok": True, "token": lock.token}

    def serve(self, name):
        while True:
            self.obey(self.orders[name].get())

    def acquire(self, order):
        if self.refusal is not None:
            raise self.refusal
        fence = self.locks[order["lock"]].acquire(**limit(order))
        return {"ok": False} if fence is None else {"ok": True, "fence": fence}

    def block(self, order):
        if self.refusal is not None:
            raise self.refusal
        lock = self.locks[order["lock"]]
        fence = lock
        if order["wait_ms"] is not None:
            fence = lock.acquire(**limit(order))
            if fence is None:
                raise redislock.NotAcquired("not in time")
        with fence:
            say(event="in", lock=order["lock"])
            time.sleep(order["work_ms"] / 1000)
            if order["fail"] is not None:
                raise Boom(order["fail"])
        return {"ok": True, "fence": lock.fence}

    def cancel(self, order):
        self.locks[self.waits[order["of"]]].cancel()
        return {"ok": True}

    def release(self, order):
        return {"ok": self.locks[order["lock"]].release()}

    def release_all(self, order):
        return {"ok": True, "count": self.made.release_all()}

    def extend(self, order):
        return {"ok": self.locks[order["lock"]].extend(seconds(order["lease_ms"]))}

    def left(self, order):
        return {"ok": True, "ms": math.ceil(self.locks[order["lock"]].left() * 1000)}

    def owned(self, order):
        return {"ok": self.locks[order["lock"]].owned()}

    def state(self, order):
        return state(self.locks[order["lock"]])

    def texts(self, order):
        lock = self.locks[order["lock"]]
        return texts(lock, self.made, lock._options)


Driver().run()
# Held locks stay held, because nothing is cleaned up.
os._exit(0)
