"""Speed. These tests run alone, and the best of some rounds counts."""

import time

import pytest
from conftest import KEY, done

pytestmark = pytest.mark.alone
COUNT = 300


async def cpu_of(work):
    began = time.process_time()
    for _ in range(COUNT):
        await work()
    return time.process_time() - began


async def test_a_pair_takes_at_most_twice_the_cpu_of_raw_commands(server, kind):
    lock = kind.locks(server).lock(KEY)

    async def raw():
        await done(kind.client.execute_command("LOCK.ACQUIRE", "raw", "t", "PX", 30_000))
        await done(kind.client.execute_command("LOCK.RELEASE", "raw", "t"))

    async def pair():
        grant = await done(lock.acquire())
        await done(grant.release())

    ratios = [await cpu_of(pair) / await cpu_of(raw) for _ in range(5)]
    assert min(ratios) < 2, ratios
