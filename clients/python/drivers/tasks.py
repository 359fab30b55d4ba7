"""The driver of the conformance suite for tasks: see docs/internals/clients.md."""

import asyncio
import json
import math
import os
import sys

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster

from redislock import Cancelled, Deadlock, LockLost, NotAcquired
from redislock.asyncio import Locks


class Driver:
    def __init__(self):
        self.locks = {}
        self.orders = {}
        self.acquires = {}
        self.done = {}
        self.tasks = set()

    def say(self, **content):
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()

    def start(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def run(self):
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if order["do"] in ("connect", "lock"):
                self.say(id=order["id"], **getattr(self, order["do"])(order))
            elif order["do"] == "cancel":
                self.start(self.cancel(order))
            else:
                self.done[order["id"]] = asyncio.Event()
                self.orders[order["lock"]].put_nowait(order)

    async def obey(self, order):
        try:
            self.say(id=order["id"], **await getattr(self, order["do"])(order))
        except asyncio.CancelledError:
            self.say(id=order["id"], error="cancelled", text="the task was cancelled")
        except NotAcquired as error:
            self.say(id=order["id"], error="not_acquired", text=str(error))
        except LockLost as error:
            self.say(id=order["id"], error="lost", text=str(error))
        except Cancelled as error:
            self.say(id=order["id"], error="cancelled", text=str(error))
        except Deadlock as error:
            self.say(id=order["id"], error="deadlock", text=str(error))
        except Exception as error:
            self.say(id=order["id"], error="other", text=repr(error))

    def connect(self, order):
        servers = [server.rsplit(":", 1) for server in order["servers"]]
        if order["cluster"]:
            nodes = [ClusterNode(host, int(port)) for host, port in servers]
            client = RedisCluster(startup_nodes=nodes)
        else:
            (host, port), *_ = servers
            client = Redis(host=host, port=int(port))
        self.made = Locks(client)
        return {"ok": True}

    def lock(self, order):
        name = order["lock"]
        lock = self.made.lock(
            order["keys"],
            lease=order["lease_ms"] / 1000,
            token=order["token"],
            shared=order["shared"],
            limit=order["limit"],
            permits=order["permits"],
            session=order["session"],
            keep=order["keep_ms"] / 1000,
            renew=order["renew"],
            on_lost=lambda _: self.say(event="lost", lock=name),
        )
        self.locks[name] = lock
        self.orders[name] = asyncio.Queue()
        self.serve(name)
        return {"ok": True, "token": lock.token}

    def serve(self, name):
        """Start one task for each lock, because a lock belongs to the task that acquired it."""

        async def orders():
            while True:
                try:
                    order = await self.orders[name].get()
                except asyncio.CancelledError:
                    continue  # The order was already executed.
                self.acquires[order["id"]] = asyncio.current_task()
                await self.obey(order)
                self.done[order["id"]].set()

        self.start(orders())

    async def cancel(self, order):
        self.acquires[order["of"]].cancel()
        await self.done[order["of"]].wait()
        self.say(id=order["id"], ok=True)

    async def acquire(self, order):
        lock, wait_ms = self.locks[order["lock"]], order["wait_ms"]
        if wait_ms == 0:
            fence = await lock.acquire(blocking=False)
        else:
            fence = await lock.acquire(timeout=-1 if wait_ms is None else wait_ms / 1000)
        return {"ok": False} if fence is None else {"ok": True, "fence": fence}

    async def release(self, order):
        return {"ok": await self.locks[order["lock"]].release()}

    async def extend(self, order):
        return {"ok": await self.locks[order["lock"]].extend(order["lease_ms"] / 1000)}

    async def left(self, order):
        return {"ok": True, "ms": math.ceil(await self.locks[order["lock"]].left() * 1000)}

    async def state(self, order):
        lock = self.locks[order["lock"]]
        return {"ok": True, "lost": lock.lost, "fence": lock.fence, "token": lock.token}


async def main():
    await Driver().run()
    # Held locks stay held, because nothing is cleaned up.
    os._exit(0)


asyncio.run(main())
