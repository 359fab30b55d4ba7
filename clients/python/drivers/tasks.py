"""The driver of the conformance suite for tasks: see docs/internals/client-tests.md."""

import asyncio
import json
import math
import os
import sys

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
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.sentinel import Sentinel

from redislock.asyncio import Locks, NotAcquired, NotHeld, Unavailable


class Driver:
    def __init__(self):
        self.locks = {}
        # The latest grant of each lock.
        self.grants = {}
        self.tasks = {}

    async def run(self):
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if order["do"] in ("connect", "lock"):
                await self.obey(order)
            else:
                self.tasks[order["id"]] = asyncio.ensure_future(self.obey(order))

    async def obey(self, order):
        try:
            reply = await getattr(self, order["do"])(order)
        except asyncio.CancelledError:
            reply = {"error": "cancelled", "text": "the task was cancelled"}
        except Exception as error:
            reply = described(error)
        say(id=order["id"], **reply)

    async def connect(self, order):
        made = client(order, (Redis, Sentinel, RedisCluster, ClusterNode))
        self.client = made
        self.made = Locks(made, observer=Observer(self.locks), **settings(order))
        return {"ok": True}

    async def lock(self, order):
        name = order["lock"]
        self.locks[name] = self.made.lock(
            order["keys"], on_lost=lambda _: say(event="lost", lock=name), **options(order)
        )
        return {"ok": True}

    async def cancel(self, order):
        task = self.tasks[order["of"]]
        task.cancel()
        await asyncio.wait({task})
        return {"ok": True}

    async def acquire(self, order):
        grant = await self.locks[order["lock"]].acquire(**limit(order))
        if grant is not None:
            self.grants[order["lock"]] = grant
        return acquired(grant)

    async def entered(self, order):
        """Return what the guarded block enters."""
        lock = self.locks[order["lock"]]
        if order["wait_ms"] is None:
            return lock
        grant = await lock.acquire(**limit(order))
        if grant is None:
            raise NotAcquired("not in time")
        return grant

    async def block(self, order):
        async with await self.entered(order) as grant:
            self.grants[order["lock"]] = grant
            say(event="in", lock=order["lock"])
            await asyncio.sleep(order["work_ms"] / 1000)
            if order["fail"] is not None:
                raise Boom(order["fail"])
        return {"ok": True, "fence": grant.fence}

    async def write(self, order):
        """Write the fence to a list until the loss of the lock ends the block."""
        async with await self.entered(order) as grant:
            while True:
                await self.client.rpush(order["list"], grant.fence)
                await asyncio.sleep(0.002)

    async def storm(self, order):
        storm, lock = Storm(order), self.locks[order["lock"]]
        loop = asyncio.get_running_loop()

        async def acquires():
            while storm.goes_on():
                wait, began = storm.wait(), loop.time()
                try:
                    grant = await lock.acquire(wait)
                except Unavailable:
                    grant = None
                storm.ended(wait, began)
                if grant is not None:
                    await asyncio.sleep(0.001)
                    began = loop.time()
                    await grant.release()
                    storm.released(began)

        await asyncio.gather(*(acquires() for _ in range(order["tasks"])))
        return storm.reply()

    def held(self, order):
        grant = self.grants.get(order["lock"])
        if grant is None:
            raise NotHeld("never acquired")
        return grant

    async def release(self, order):
        return {"ok": await self.held(order).release()}

    async def release_all(self, order):
        return {"ok": True, "count": await self.made.release_all()}

    async def extend(self, order):
        return {"ok": await self.held(order).extend(seconds(order["lease_ms"]))}

    async def left(self, order):
        grant = self.grants.get(order["lock"])
        return {"ok": True, "ms": 0 if grant is None else math.ceil(grant.left() * 1000)}

    async def owned(self, order):
        grant = self.grants.get(order["lock"])
        return {"ok": grant is not None and await grant.owned()}

    async def state(self, order):
        return state(self.grants.get(order["lock"]))

    async def texts(self, order):
        lock = self.locks[order["lock"]]
        return texts(lock, self.made, lock._options, self.grants.get(order["lock"]))


async def main():
    await Driver().run()
    # Held locks stay held, because nothing is cleaned up.
    os._exit(0)


asyncio.run(main())
