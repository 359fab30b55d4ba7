"""Single flight: one caller computes, and the others read."""

import asyncio
import threading

from conftest import until
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from redislock import Locks
from redislock.asyncio import Locks as AsyncLocks

CALLERS = 40


def test_one_thread_computes_and_the_others_read(server):
    locks, computed, results = Locks(Redis(port=server.port)), [], []

    def compute():
        computed.append(1)
        until("another one waits", lambda: server.waiters("k") > 0)
        server.redis.set("result", "7")
        return b"7"

    def call():
        results.append(locks.once("k", lambda: server.redis.get("result"), compute))

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(computed) == 1
    assert results == [b"7"] * CALLERS
    assert server.is_free("k")


async def test_the_next_task_computes_if_one_fails(server):
    client = AsyncRedis(port=server.port)
    locks, computed = AsyncLocks(client), []

    async def compute():
        computed.append(1)
        await asyncio.sleep(0.05)
        if len(computed) < 3:
            raise ZeroDivisionError
        await client.set("result", "7")
        return b"7"

    calls = (locks.once("k", lambda: client.get("result"), compute) for _ in range(CALLERS))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert len(computed) == 3
    assert sum(isinstance(it, ZeroDivisionError) for it in results) == 2
    assert results.count(b"7") == CALLERS - 2
    assert server.is_free("k")
    await locks.aclose()
    await client.aclose()
