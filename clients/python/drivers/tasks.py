"""The driver of the conformance suite for tasks: see docs/internals/client-tests.md."""

import asyncio
import json
import os
import sys

from orders import Orders, say
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.sentinel import Sentinel

from redislock.asyncio import Locks


class Driver(Orders):
    classes = (Redis, Sentinel, RedisCluster, ClusterNode)
    Locks = Locks
    # The loss cancels the block.
    goes_on_after_a_loss = True
    sleep = staticmethod(asyncio.sleep)

    async def run(self):
        tasks = {}
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if order["do"] == "cancel":
                task = tasks[order["of"]]
                task.cancel()
                await asyncio.wait({task})
                say(id=order["id"], ok=True)
            elif order["do"] in ("connect", "lock"):
                await self.obey(order)
            else:
                tasks[order["id"]] = asyncio.ensure_future(self.obey(order))

    async def obey(self, order):
        try:
            await super().obey(order)
        except asyncio.CancelledError:
            say(id=order["id"], error="cancelled", text="the task was cancelled")

    async def connect(self, order):
        return self.made(order)

    async def done(self, result):
        return await result

    def guarded(self, block):
        return block

    async def all(self, works):
        await asyncio.gather(*works)


async def main():
    await Driver().run()
    # Held locks stay held, because nothing is cleaned up.
    os._exit(0)


asyncio.run(main())
