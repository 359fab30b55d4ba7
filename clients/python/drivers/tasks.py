"""The driver of the conformance suite for tasks: see docs/internals/clients.md."""

import asyncio
import json
import math
import os
import sys

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
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.sentinel import Sentinel

from redislock.asyncio import Locks, NotAcquired


class Driver:
    def __init__(self):
        self.locks = {}
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
        self.made = Locks(made, observer=Observer(self.locks), **settings(order))
        return {"ok": True}

    async def lock(self, order):
        name = order["lock"]
        lock = self.made.lock(
            order["keys"], on_lost=lambda _: say(event="lost", lock=name), **options(order)
        )
        self.locks[name] = lock
        return {"ok": True, "token": lock.token}

    async def cancel(self, order):
        task = self.tasks[order["of"]]
        task.cancel()
        await asyncio.wait({task})
        return {"ok": True}

    async def acquire(self, order):
        fence = await self.locks[order["lock"]].acquire(**limit(order))
        return {"ok": False} if fence is None else {"ok": True, "fence": fence}

    async def block(self, order):
        lock = self.locks[order["lock"]]
        fence = lock
        if order["wait_ms"] is not None:
            fence = await lock.acquire(**limit(order))
            if fence is None:
                raise NotAcquired("not in time")
        async with fence:
            say(event="in", lock=order["lock"])
            await asyncio.sleep(order["work_ms"] / 1000)
            if order["fail"] is not None:
                raise Boom(order["fail"])
        return {"ok": True, "fence": lock.fence}

    async def release(self, order):
        return {"ok": await self.locks[order["lock"]].release()}

    async def release_all(self, order):
        return {"ok": True, "count": await self.made.release_all()}

    async def extend(self, order):
        return {"ok": await self.locks[order["lock"]].extend(seconds(order["lease_ms"]))}

    async def left(self, order):
        return {"ok": True, "ms": math.ceil(await self.locks[order["lock"]].left() * 1000)}

    async def owned(self, order):
        return {"ok": await self.locks[order["lock"]].owned()}

    async def state(self, order):
        return state(self.locks[order["lock"]])

    async def texts(self, order):
        lock = self.locks[order["lock"]]
        return texts(lock, self.made, lock._options)


async def main():
    await Driver().run()
    # Held locks stay held, because nothing is cleaned up.
    os._exit(0)


asyncio.run(main())
