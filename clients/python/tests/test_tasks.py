"""Behaviours that are specific to tasks."""

import asyncio
import random

import pytest
from conftest import KEY, until_task

from redislock import LockLost
from redislock._crowd import MOST_ASKING
from redislock._tasks import Listener


@pytest.fixture
def kind_name():
    return "tasks"


# --- cancelled tasks ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["plain", "session", "block"])
async def test_a_task_may_be_cancelled_at_any_moment(server, locks, way):
    """Cancel a task whose lock becomes free during its wait, is free before it, or stays held."""
    chance = random.Random(7)
    lock, cancelled = locks.lock(KEY, session=way == "session"), 0

    async def work():
        if way != "block":
            return await lock.acquire(timeout=20)
        async with lock:
            pass

    for round in range(120):
        ends_wait, stays_held = round % 3 == 1, round % 3 == 2
        if ends_wait or stays_held:
            server.other_holds(KEY)
        task = asyncio.ensure_future(work())
        await asyncio.sleep(chance.random() * 0.002)
        if ends_wait:
            server.other_releases(KEY)
        task.cancel()
        # Cancels the task once more while it ends.
        if round % 5 == 0:
            await asyncio.sleep(0)
            task.cancel()
        try:
            grant = await task
            assert way == "block" or await grant.release()
        except asyncio.CancelledError:
            cancelled += 1
        if stays_held:
            server.other_releases(KEY)
        await until_task("nothing is on its way", lambda: not locks._io._running, 5)
        assert server.is_free(KEY), f"round {round}"
    assert cancelled > 40
    assert not lock._entered and not locks._observer.losses
    async with lock as grant:
        assert await grant.owned()


async def test_a_task_may_be_cancelled_at_any_step_of_connecting(server, kind):
    """Cancel at each step of the event loop. After a lost cancellation the wait would continue."""
    server.other_holds(KEY)
    for steps in range(50):
        waits = asyncio.ensure_future(kind.locks(server).lock(KEY).acquire(timeout=20))
        for _ in range(steps):
            await asyncio.sleep(0)
        waits.cancel()
        done, _ = await asyncio.wait({waits}, timeout=5)
        assert done and waits.cancelled(), f"cancelled after {steps} steps"
        await until_task("no place is left", lambda: server.waiters(KEY) == 0)


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
    for raises, expected in ((lambda: None, LockLost), (lambda: 1 / 0, ZeroDivisionError)):
        with pytest.raises(expected):
            async with locks.lock(KEY, lease=0.6):
                server.redis.delete(KEY)
                try:
                    await asyncio.sleep(20)
                except asyncio.CancelledError:
                    raises()


@pytest.mark.skipif(not hasattr(asyncio.Task, "uncancel"), reason="Python 3.11")
@pytest.mark.parametrize("is_first", [True, False])
async def test_an_outer_cancellation_wins(server, locks, is_first):
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def work():
        async with locks.lock(KEY, lease=0.6, renew=False) as grant:
            server.redis.delete(KEY)
            entered.set()
            try:
                await asyncio.sleep(20)
            finally:
                cancelled.set()
                if is_first:
                    grant._hold.lose()
                await asyncio.sleep(0.1)

    task = asyncio.ensure_future(work())
    await (entered if is_first else cancelled).wait()
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


async def test_a_loss_is_told_to_a_coroutine(locks):
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
    server.other_releases(KEY)


async def test_each_task_leaves_its_own_block(locks):
    lock, may_leave = locks.lock(KEY, limit=2), asyncio.Event()

    async def enters_first_and_leaves_first():
        async with lock:
            await may_leave.wait()

    first = asyncio.ensure_future(enters_first_and_leaves_first())
    await until_task("the first one is in", lambda: lock._entered)
    async with lock as grant:
        may_leave.set()
        await first
        assert await grant.owned()


async def test_500_tasks_of_one_lock_are_served_in_order(server, locks):
    lock, order = locks.lock(KEY), []

    async def work(number):
        async with lock:
            order.append(number)
            await asyncio.sleep(0)
            assert order[-1] == number

    server.other_holds(KEY)
    connected = server.connected()
    tasks = [asyncio.ensure_future(work(number)) for number in range(500)]
    await until_task("as many as may wait", lambda: server.waiters(KEY) == MOST_ASKING)
    server.other_releases(KEY)
    await asyncio.gather(*tasks)
    assert sorted(order) == list(range(500))
    # Several connections may change the order of those that ask at once.
    assert all(abs(place - number) < MOST_ASKING for place, number in enumerate(order))
    assert not locks._io.crowds
    assert server.connected() - connected <= 34
