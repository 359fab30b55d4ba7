"""Behaviours that are specific to tasks."""

import asyncio
import random
import time

import pytest
from redis.asyncio import ConnectionPool, Redis

from redislock import LockLost, NotAcquired
from redislock.asyncio import Locks

KEY = "k"

SETTINGS = {
    "defaults": {},
    "a pool of one connection": {"max_connections": 1},
    "decoded answers": {"decode_responses": True},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "a short time limit": {"socket_timeout": 2},
    "health checks": {"health_check_interval": 1},
}


@pytest.fixture
async def locks(server):
    client = Redis(port=server.port)
    locks = Locks(client)
    yield locks
    await locks.aclose()
    await client.aclose()


async def until(what, is_so, patience=20.0):
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"not in {patience} s: {what}"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
async def test_a_wait_is_longer_than_every_limit_of_the_client(server, settings):
    client = Redis(port=server.port, **settings)
    locks = Locks(client)
    waiter = locks.lock(KEY)
    async with locks.lock(KEY) as holder:
        assert await holder.locked()
        assert 25 < await holder.left() <= 30
        waits = asyncio.ensure_future(waiter.acquire())
        await until("it waits", lambda: server.waiters(KEY) == 1)
        connected = server.redis.info("stats")["total_connections_received"]
        began = time.monotonic()
        long = 2.3 if {"socket_timeout", "health_check_interval"} & {*settings} else 0.2
        await until("it has waited long", lambda: time.monotonic() > began + long)
        # The same wait continues, without a new connection.
        assert server.redis.info("stats")["total_connections_received"] == connected
    assert await waits
    await client.ping()
    await locks.aclose()
    await client.aclose()


@pytest.mark.parametrize("settings", [{}, {"host": "localhost", "port": "text"}])
async def test_a_client_that_names_its_server_in_another_way_keeps_its_connection(server, settings):
    port = str(server.port) if settings else server.port
    client = Redis(connection_pool=ConnectionPool(**{**settings, "port": port}))
    locks = Locks(client)
    connected = server.redis.info("stats")["total_connections_received"]
    for _ in range(20):
        async with locks.lock(KEY):
            pass
    assert server.redis.info("stats")["total_connections_received"] - connected == 1
    await locks.aclose()
    await client.aclose()


async def test_a_task_may_be_cancelled_at_any_moment_of_its_wait(server, locks):
    """Cancel a wait whose lock becomes free during the wait, is free before it, or stays held."""
    chance = random.Random(7)
    cancelled = 0
    for round in range(120):
        lock = locks.lock(KEY)
        held = round % 3 > 0
        if held:
            server.other_holds(KEY)
        waits = asyncio.ensure_future(lock.acquire(timeout=20))
        await asyncio.sleep(chance.random() * 0.002)
        if held and round % 3 == 1:
            server.other_releases(KEY)
        waits.cancel()
        # Cancels the task once more while it cleans up.
        if round % 5 == 0:
            await asyncio.sleep(0)
            waits.cancel()
        try:
            await waits
            server.redis.delete(KEY)
        except asyncio.CancelledError:
            cancelled += 1
        if held and round % 3 == 2:
            server.other_releases(KEY)
        await until(f"nothing is left in round {round}", lambda: server.is_free(KEY), 5)
    assert cancelled > 40
    async with locks.lock(KEY):
        pass


async def test_a_task_may_be_cancelled_at_any_step_of_connecting(server):
    """Cancel at each step of the event loop. After a lost cancellation the wait would continue."""
    server.other_holds(KEY)
    for steps in range(50):
        client = Redis(port=server.port)
        locks = Locks(client)
        waits = asyncio.ensure_future(locks.lock(KEY).acquire(timeout=20))
        for _ in range(steps):
            await asyncio.sleep(0)
        waits.cancel()
        done, _ = await asyncio.wait({waits}, timeout=5)
        assert done and waits.cancelled(), f"cancelled after {steps} steps"
        assert server.waiters(KEY) == 0
        await locks.aclose()
        await client.aclose()


async def test_a_task_may_be_cancelled_at_any_moment_of_its_release(server, locks):
    chance = random.Random(8)
    lock = locks.lock(KEY)
    for round in range(80):

        async def work():
            async with lock:
                pass

        task = asyncio.ensure_future(work())
        await asyncio.sleep(chance.random() * 0.002)
        task.cancel()
        await asyncio.wait({task})
        await until(f"nothing is left in round {round}", lambda: server.is_free(KEY), 5)


async def test_a_time_limit_around_it_leaves_nothing(server, locks):
    server.other_holds(KEY)
    for _ in range(5):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(locks.lock(KEY).acquire(), 0.05)
        assert server.waiters(KEY) == 0
    server.other_releases(KEY)
    assert server.is_free(KEY)


async def test_who_waits_for_a_task_that_shares_the_lock_can_be_cancelled(server, locks):
    lock = locks.lock(KEY)
    async with lock:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(lock.acquire(), 0.05)
        another = asyncio.ensure_future(lock.acquire(timeout=0.05))
        assert await another is None
    async with lock:
        pass


async def test_a_wait_that_is_given_up_by_another_takes_a_new_place(server, locks):
    lock = locks.lock(KEY)
    server.other_holds(KEY)
    waits = asyncio.ensure_future(lock.acquire())
    await until("it waits", lambda: server.waiters(KEY) == 1)
    assert server.redis.execute_command("LOCK.CANCEL", KEY, lock.token) == 1
    await until("it waits again", lambda: server.waiters(KEY) == 1)
    server.other_releases(KEY)
    assert await asyncio.wait_for(waits, 5)


async def test_the_loss_can_cancel_the_task_that_holds_it(server, locks):
    task = asyncio.current_task()
    lock = locks.lock(KEY, lease=0.6, on_lost=lambda _: task.cancel())
    with pytest.raises(asyncio.CancelledError):
        async with lock:
            server.redis.delete(KEY)
            await asyncio.sleep(20)
    assert lock.lost
    if hasattr(task, "uncancel"):
        task.uncancel()


async def test_the_loss_can_be_told_to_a_coroutine(server, locks):
    told = asyncio.Event()

    async def tell(lock):
        await asyncio.sleep(0)
        told.set()

    lock = locks.lock(KEY, lease=0.3, renew=False, on_lost=tell)
    await lock.acquire()
    await asyncio.wait_for(told.wait(), 5)
    assert not await lock.release()


async def test_the_end_of_with(server, locks):
    lock = locks.lock(KEY, wait=5)
    with pytest.raises(LockLost):
        async with lock:
            server.redis.delete(KEY)
    with pytest.raises(ZeroDivisionError):
        async with lock:
            server.redis.delete(KEY)
            1 / 0
    server.other_holds(KEY)
    with pytest.raises(NotAcquired):
        async with locks.lock(KEY, wait=1):
            pass


def test_one_event_loop_after_another(server):
    client = Redis(port=server.port)
    locks = Locks(client)

    async def once():
        async with locks.lock(KEY) as lock:
            return lock.fence

    assert asyncio.run(once()) < asyncio.run(once())
    assert server.is_free(KEY)
