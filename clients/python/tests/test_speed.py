"""Speed. These tests run alone, and the best of some rounds counts."""

import time

import pytest
from conftest import done
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from redislock import Locks
from redislock.asyncio import Locks as AsyncLocks

pytestmark = pytest.mark.alone
COUNT = 300


async def cpu_of(work):
    began = time.process_time()
    await work()
    return time.process_time() - began


@pytest.mark.parametrize("kind", [Redis, AsyncRedis])
async def test_a_pair_takes_at_most_twice_the_cpu_of_raw_commands(server, kind):
    client = kind(port=server.port)
    locks = (Locks if kind is Redis else AsyncLocks)(client)
    lock = locks.lock("k")

    async def raw():
        for _ in range(COUNT):
            await done(client.execute_command("LOCK.ACQUIRE", "raw", "t", "PX", 30_000))
            await done(client.execute_command("LOCK.RELEASE", "raw", "t"))

    async def ours():
        for _ in range(COUNT):
            grant = await done(lock.acquire())
            await done(grant.release())

    ratios = [await cpu_of(ours) / await cpu_of(raw) for _ in range(5)]
    assert min(ratios) < 2, ratios
    await done(locks.close() if kind is Redis else locks.aclose())
    await done(client.close() if kind is Redis else client.aclose())
