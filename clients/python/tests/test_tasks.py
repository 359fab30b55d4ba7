"""Behaviours that are specific to tasks."""

import asyncio
import random

import pytest
from conftest import Notes, until_task
from redis.asyncio import Redis

from redislock import LockLost
from redislock._crowd import MOST_ASKING
from redislock._tasks import Listener
from redislock.asyncio import Locks

KEY = "k"


@pytest.fixture
async def locks(server):
    client = Redis(port=server.port)
    # Long, because the machine may be busy.
    locks = Locks(client, command_timeout=10, observer=Notes())
    yield locks
    await locks.aclose()
    await client.aclose()


async def until_idle(locks):
    await until_task("nothing is on its way", lambda: not locks._io._running, 5)


# --- cancelled tasks ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"session": True}], ids=["plain", "session"])
async def test_a_task_may_be_cancelled_at_any_moment_of_its_wait(server, locks, options):
    """Cancel a wait whose lock becomes free during the wait, is free before it, or stays held."""
    chance = random.Random(7)
    lock, cancelled = locks.lock(KEY, **options), 0
    for round in range(120):
        held = round % 3 > 0
        if held:
            server.other_holds(KEY)
        waits = asyncio.ensure_future(lock.acquire(timeout=20))
        await asyncio.sleep(chance.random() * 0.002)
        if held and round % 3 == 1:
            server.other_releases(KEY)
        waits.cancel()
        # Cancels the task once more while it ends.
        if round % 5 == 0:
            await asyncio.sleep(0)
            waits.cancel()
        try:
            assert await (await waits).release()
        except asyncio.CancelledError:
            cancelled += 1
        if held and round % 3 == 2:
            server.other_releases(KEY)
        await until_idle(locks)
        assert server.is_free(KEY), f"round {round}"
    assert cancelled > 40
    async with lock as grant:
        assert await grant.owned()
    assert locks._observer.count("lost") == 0


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
        await until_task("no place is left", lambda: server.waiters(KEY) == 0)
        await locks.aclose()
        await client.aclose()


async def test_a_task_may_be_cancelled_at_any_moment_of_its_block(server, locks):
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
        await until_idle(locks)
        assert server.is_free(KEY), f"round {round}"
    assert not lock._entered


async def test_a_cancelled_release_goes_on(server, locks):
    grant = await locks.lock(KEY).acquire()
    release = asyncio.ensure_future(grant.release())
    await asyncio.sleep(0)
    release.cancel()
    await asyncio.wait({release})
    await until_task("it is released", lambda: server.is_free(KEY))


# --- losses ---------------------------------------------------------------------------------------


async def test_a_loss_that_the_block_finds_itself_ends_it_too(server, locks):
    for goes_on in (False, True):
        with pytest.raises(LockLost):
            async with locks.lock(KEY) as grant:
                server.redis.delete(KEY)
                assert await grant.extend(5) is False
                if goes_on:
                    await asyncio.sleep(20)
        await asyncio.sleep(0)


async def test_a_block_that_catches_the_cancellation_raises_the_loss(server, locks):
    with pytest.raises(LockLost):
        async with locks.lock(KEY, lease=0.6):
            server.redis.delete(KEY)
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                pass
    with pytest.raises(ZeroDivisionError):
        async with locks.lock(KEY, lease=0.6):
            server.redis.delete(KEY)
            try:
                await asyncio.sleep(20)
            finally:
                1 / 0


@pytest.mark.skipif(not hasattr(asyncio.Task, "uncancel"), reason="Python 3.11")
@pytest.mark.parametrize("is_first", [True, False])
async def test_an_outer_cancellation_wins(server, locks, is_first):
    cancelled = asyncio.Event()

    async def work():
        async with locks.lock(KEY, lease=0.6, renew=False) as grant:
            server.redis.delete(KEY)
            try:
                await asyncio.sleep(20)
            finally:
                cancelled.set()
                if is_first:
                    grant._hold.lose()
                await asyncio.sleep(0.1)

    task = asyncio.ensure_future(work())
    if is_first:
        await until_task("the lock is held", lambda: locks._observer.seen)
        await asyncio.sleep(0.05)
        task.cancel()
    else:
        await cancelled.wait()
        task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()


@pytest.mark.skipif(not hasattr(asyncio, "timeout"), reason="Python 3.11")
async def test_a_time_limit_and_a_loss_keep_apart(server, locks):
    with pytest.raises(LockLost):
        async with asyncio.timeout(20):
            async with locks.lock(KEY, lease=0.6):
                server.redis.delete(KEY)
                async with asyncio.timeout(20):
                    await asyncio.sleep(20)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            async with locks.lock(KEY):
                await asyncio.sleep(20)
    assert server.is_free(KEY)


async def test_a_loss_is_told_to_a_coroutine(server, locks):
    told = asyncio.Event()

    async def tell(grant):
        await asyncio.sleep(0)
        told.set()

    grant = await locks.lock(KEY, lease=0.5, renew=False, on_lost=tell).acquire()
    await asyncio.wait_for(told.wait(), 5)
    assert not await grant.release()


# --- messages -------------------------------------------------------------------------------------


async def test_short_limits_replace_a_silent_connection(server, locks, monkeypatch):
    receive, silent = Listener._receive, []

    def receive_by_others(listener, reply):
        silent.append(listener)
        if listener is not silent[0]:
            receive(listener, reply)

    monkeypatch.setattr(Listener, "_receive", receive_by_others)
    locks._commands.servers.attempt_seconds = 0.5
    server.other_holds(KEY)
    lock, loop = locks.lock(KEY), asyncio.get_running_loop()
    end = loop.time() + 10
    while len(set(silent)) < 2:
        assert loop.time() < end
        assert await lock.acquire(0.2) is None


async def test_500_tasks_of_one_lock_are_served_in_order(server, locks):
    lock, order, tokens = locks.lock(KEY), [], []

    async def work(number):
        async with lock as grant:
            tokens.append(grant.token.encode())
            order.append(number)
            await asyncio.sleep(0)
            assert order[-1] == number

    server.other_holds(KEY)
    connected = server.connected()
    tasks = [asyncio.ensure_future(work(number)) for number in range(500)]
    await until_task("as many as may wait", lambda: server.waiters(KEY) == MOST_ASKING)
    queue = [dict(zip(*[iter(it)] * 2))[b"token"] for it in server.info(KEY)[b"queue"]]
    server.other_releases(KEY)
    await asyncio.gather(*tasks)
    assert sorted(order) == list(range(500)) and tokens[: len(queue)] == queue
    # Several connections may change the order of those that ask at once.
    assert all(abs(place - number) < MOST_ASKING for place, number in enumerate(order))
    assert not locks._io.crowds
    assert server.connected() - connected <= 34
    assert server.is_free(KEY)
