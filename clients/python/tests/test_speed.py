"""Speed. These tests run alone, and the best of some rounds counts."""

import time

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from redislock import Locks
from redislock.asyncio import Locks as AsyncLocks

pytestmark = pytest.mark.alone
COUNT = 300


def cpu_of(work):
    began = time.process_time()
    work()
    return time.process_time() - began


def test_a_pair_takes_at_most_twice_the_cpu_of_raw_commands(server):
    client = Redis(port=server.port)
    lock = Locks(client).lock("k")

    def raw():
        for _ in range(COUNT):
            client.execute_command("LOCK.ACQUIRE", "raw", "t", "PX", 30_000)
            client.execute_command("LOCK.RELEASE", "raw", "t")

    def ours():
        for _ in range(COUNT):
            lock.acquire().release()

    ratios = [cpu_of(ours) / cpu_of(raw) for _ in range(5)]
    assert min(ratios) < 2, ratios


async def test_a_pair_of_a_task_takes_at_most_twice_the_cpu_of_raw_commands(server):
    client = AsyncRedis(port=server.port)
    locks = AsyncLocks(client)
    lock = locks.lock("k")

    async def raw():
        for _ in range(COUNT):
            await client.execute_command("LOCK.ACQUIRE", "raw", "t", "PX", 30_000)
            await client.execute_command("LOCK.RELEASE", "raw", "t")

    async def ours():
        for _ in range(COUNT):
            await (await lock.acquire()).release()

    async def cpu(work):
        began = time.process_time()
        await work()
        return time.process_time() - began

    ratios = [await cpu(ours) / await cpu(raw) for _ in range(5)]
    assert min(ratios) < 2, ratios
    await locks.aclose()
    await client.aclose()
