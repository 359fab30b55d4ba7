"""The driver of the conformance suite for threads: see docs/internals/client-tests.md."""

import contextlib
import json
import os
import queue
import sys
import threading
import time

from orders import Orders, say
from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

from redislock import Locks
from redislock._errors import refused
from redislock._threads import run


def start(act, *args):
    thread = threading.Thread(target=act, args=args, daemon=True)
    thread.start()
    return thread


class Driver(Orders):
    classes = (Redis, Sentinel, RedisCluster, ClusterNode)
    Locks = Locks
    # A program looks at the grant.
    goes_on_after_a_loss = False

    def __init__(self):
        super().__init__()
        # The orders to reentrant locks, each in one thread, which counts its holds.
        self.queues = {}
        self.connected = threading.Event()
        self.refusal = None

    def run(self):
        cancels = {}
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "cancel":
                cancels[order["of"]].set()
                say(id=order["id"], ok=True)
            elif order["do"] in ("connect", "lock"):
                run(self.obey(order))
            elif order.get("lock") in self.queues:
                self.queues[order["lock"]].put(order)
            elif order["do"] == "acquire":
                cancels[order["id"]] = cancel = threading.Event()
                start(run, self.obey(order, cancel=cancel))
            else:
                start(run, self.obey(order))

    async def connect(self, order):
        """Make the client. That of a cluster connects as it is made, so a thread does that."""
        start(self.connects, order) if order["cluster"] else self.connects(order)
        return {"ok": True}

    def connects(self, order):
        while not self.connected.is_set():
            try:
                self.made(order)
                self.connected.set()
            except Exception as error:
                self.refusal = refused(error)
                if not order["cluster"]:
                    raise
                if self.refusal is not None:
                    self.connected.set()
                time.sleep(0.1)

    async def lock(self, order):
        if not self.connected.wait(10):
            return {"error": "unavailable", "text": "redis-py's client can't be made"}
        if self.refusal is None:
            await super().lock(order)
        if order.get("reentrant"):
            self.queues[order["lock"]] = orders = queue.Queue()
            start(self.serve, orders)
        return {"ok": True}

    def serve(self, orders):
        while True:
            run(self.obey(orders.get()))

    async def obey(self, order, **more):
        # A program has a refusal of its user as it makes redis-py's client, before it has locks.
        if self.refusal is not None and order["do"] != "lock":
            say(id=order["id"], error="denied", text=str(self.refusal))
        else:
            await super().obey(order, **more)

    async def done(self, result):
        return result

    async def sleep(self, seconds):
        time.sleep(seconds)

    @contextlib.asynccontextmanager
    async def guarded(self, block):
        with block as grant:
            yield grant

    async def all(self, works):
        for thread in [start(run, work) for work in works]:
            thread.join()


Driver().run()
# Held locks stay held, because nothing is cleaned up.
os._exit(0)
