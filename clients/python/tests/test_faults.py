"""Faults between the library and the server, and races between calls, for threads and tasks."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import free_port, until
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ConnectionError
from test_bad_days import Notes, standing_still
from test_tasks import until as until_task
from test_threads import in_thread

from redislock import Cancelled, LockLost, Locks, NotHeld, Unavailable, _tasks, _threads
from redislock._errors import NoAnswer
from redislock.asyncio import Locks as AsyncLocks

KEY = "k"


@pytest.fixture
async def tasks(server):
    client = AsyncRedis(port=server.port)
    # Long, because the machine may be busy.
    locks = AsyncLocks(client, command_timeout=10, observer=Notes())
    yield locks
    await locks.aclose()
    await client.aclose()


def left_at(server, lock):
    """Return the lease at the server in seconds."""
    return server.redis.execute_command("LOCK.CHECK", KEY, lock.token) / 1000


# --- threads --------------------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch):
    """Let no thread start in the block. It gives the number of threads that were refused."""

    @contextlib.contextmanager
    def refused():
        refusals = []

        def refuse(*_):
            refusals.append(1)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(_threads, "in_thread", refuse)
            yield refusals

    return refused


def test_renewals_go_on_after_no_thread_could_be_started(server, no_threads):
    locks = Locks(Redis(port=server.port))
    first, second = locks.lock(KEY, lease=3), locks.lock("another", lease=3)
    assert first.acquire() and second.acquire()
    with no_threads() as refusals:
        until("both renewals were refused", lambda: len(refusals) >= 2, 3)
    began = time.monotonic()
    until("two leases are over", lambda: time.monotonic() > began + 3.5)
    assert first.release() and second.release()


def test_a_collected_lock_whose_release_finds_no_thread_leaves_the_others(server, no_threads):
    locks = Locks(Redis(port=server.port))
    kept, collected = locks.lock("another", lease=3), locks.lock(KEY)
    assert kept.acquire() and collected.acquire()
    with no_threads() as refusals:
        del collected
        gc.collect()
        until("the release was refused", lambda: refusals, 3)
    began = time.monotonic()
    until("the lease is over", lambda: time.monotonic() > began + 3.5)
    assert kept.release()


def test_a_loss_is_told_though_no_thread_can_be_started(server, no_threads):
    told = []
    locks = Locks(Redis(port=server.port), observer=Notes())
    lock = locks.lock(KEY, lease=0.5, renew=False, on_lost=told.append)
    assert lock.acquire()
    with no_threads():
        until("the loss is told", lambda: told == [lock], 5)
        assert ("lost",) in locks._observer.seen
    assert lock.release() is False
    with lock:
        pass


def test_a_grant_that_no_thread_would_renew_is_released(server, monkeypatch):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    with lock:
        pass
    keeper = lock._io.keeper
    keeper._thread, start = None, keeper.wake

    def refuse():
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(keeper, "wake", refuse)
    keeper._looks_at = float("inf")
    with pytest.raises(RuntimeError, match="can't start"):
        lock.acquire()
    assert server.is_free(KEY)
    monkeypatch.setattr(keeper, "wake", start)
    with lock:
        pass


@pytest.mark.parametrize("limit", [0, 0.2])
def test_a_thread_that_waits_for_its_turn_learns_of_the_outage(limit):
    lock = Locks(Redis(port=free_port()), observer=Notes()).lock(KEY)
    first = in_thread(lock.acquire)
    until("the outage is known", lambda: lock._locks._observer.seen)
    with pytest.raises(Unavailable, match="refused"):
        lock.acquire(limit)
    lock.cancel()
    with pytest.raises(Cancelled):
        first()


def test_another_thread_releases_the_lost_lock_of_a_thread_that_is_gone(server):
    lock = Locks(Redis(port=server.port)).lock(KEY, lease=0.3)
    threading.Thread(target=lock.acquire).start()
    until("it is lost", lambda: lock.fence and lock._grant is None)
    gc.collect()
    assert lock.release() is False
    with pytest.raises(NotHeld):
        lock.release()


def test_a_failed_inner_acquire_leaves_the_session(server, lose_replies):
    locks = Locks(Redis(port=server.port), command_timeout=10)
    lock = locks.lock(KEY, session=True, reentrant=True)
    with lock:
        lose_replies(_threads.Link, "LOCK.ACQUIRE", 99)
        with pytest.raises(Unavailable):
            lock.acquire(0.2)
        began = time.monotonic()
        until("a session would have ended", lambda: time.monotonic() > began + 0.5)
        assert lock.owned()
        until("the old connections are closed", lambda: not lock._grant.left)
        assert lock.owned()
    assert server.is_free(KEY)


def test_a_connection_that_lacks_a_reply_takes_no_more_commands(own_server):
    lock = Locks(Redis(port=own_server.port)).lock(KEY, session=True)
    assert lock.acquire()
    link, call = lock._grant.kept.link, _threads.ThreadCall(b"")
    with standing_still(own_server):
        with pytest.raises(NoAnswer):
            _threads.run(link.exchange([("PING",)], time.monotonic() + 0.1, call))
    with pytest.raises(ConnectionError):
        _threads.run(link.exchange([("ECHO", "1")], time.monotonic() + 5, call))
    assert lock.release()


CHILD_OUTLIVES_PARENT = """
import os, redis, redislock, sys, time
lock = redislock.Locks(redis.Redis(port=int(sys.argv[1]))).lock("k", session=True)
lock.acquire()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


def test_a_forked_process_doesnt_keep_the_session_of_its_parent(server):
    words = [sys.executable, "-c", CHILD_OUTLIVES_PARENT, str(server.port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        try:
            assert not server.is_free(KEY)
            parent.kill()
            until("the session has ended", lambda: server.is_free(KEY), 5)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_lock_that_a_forked_process_collects_stays(server):
    locks = Locks(Redis(port=server.port))
    lock = locks.lock(KEY)
    lock.acquire()
    child = os.fork()
    if child == 0:
        status = 2
        with contextlib.suppress(BaseException):
            del lock
            gc.collect()
            # Nothing was given to the thread that releases.
            status = 0 if locks._io.keeper._work.empty() and not locks._io.keeper._thread else 1
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert lock.release()


# --- tasks ----------------------------------------------------------------------------------------


async def test_a_hook_of_a_loss_that_raises_leaves_the_renewals(tasks, server):
    class Raises(Notes):
        def lost(self, lock):
            1 / 0

    told = []

    def on_lost(lock):
        told.append(lock)
        1 / 0

    tasks._observer = Raises()
    kept = tasks.lock("another", lease=0.9)
    lost = tasks.lock(KEY, lease=0.4, renew=False, on_lost=on_lost)
    assert await kept.acquire() and await lost.acquire()
    await until_task("the loss is told", lambda: told, 5)
    began = time.monotonic()
    await until_task("the lease is over", lambda: time.monotonic() > began + 1.2)
    assert await kept.release()
    assert await lost.release() is False


async def test_a_release_that_is_sent_again_spares_the_next_grant(tasks, server, lose_replies):
    lock = tasks.lock(KEY, reentrant=True)
    await lock.acquire()
    lose_replies(_tasks.Line, "LOCK.RELEASE")
    release = asyncio.ensure_future(lock.release())
    await until_task("it is sent", lambda: server.is_free(KEY))
    assert await asyncio.ensure_future(lock.acquire(5))
    assert await release
    assert await lock.owned()
    assert await lock.release()
    assert server.is_free(KEY)


async def test_a_short_limit_doesnt_stop_the_connection_that_all_tasks_share(tasks, server):
    servers = tasks._commands.servers
    open, opened = servers.open, []

    async def slow(*args):
        opened.append(1)
        await asyncio.sleep(0.4)
        return await open(*args)

    servers.open = slow
    patient = asyncio.ensure_future(tasks.lock("another").acquire(3))
    with pytest.raises(Unavailable):
        await tasks.lock(KEY).acquire(0.01)
    assert await patient
    assert len(opened) == 1


@pytest.mark.parametrize("limit", [0, 0.2])
async def test_a_task_that_waits_for_its_turn_learns_of_the_outage(limit):
    client = AsyncRedis(port=free_port())
    notes = Notes()
    lock = AsyncLocks(client, observer=notes).lock(KEY)
    first = asyncio.ensure_future(lock.acquire())
    await until_task("the outage is known", lambda: notes.seen)
    with pytest.raises(Unavailable, match="refused"):
        await lock.acquire(limit)
    first.cancel()
    await asyncio.wait({first})
    await client.aclose()


async def test_lost_holds_of_tasks_are_those_of_the_object(tasks, server):
    lock = tasks.lock(KEY, lease=0.4, renew=False, reentrant=True)
    await lock.acquire()
    await asyncio.ensure_future(lock.acquire())
    await until_task("it is lost", lambda: lock.lost and lock._grant is None)

    async def another_task():
        with pytest.raises(LockLost):
            await lock.acquire()
        assert await lock.release() is False

    await asyncio.ensure_future(another_task())
    with pytest.raises(LockLost):
        await lock.acquire()
    assert await lock.release() is False
    assert await lock.acquire()
    assert await lock.release()
    with pytest.raises(NotHeld):
        await lock.release()


async def test_a_lost_task_doesnt_release_the_grant_of_the_next_one(tasks, server):
    lock = tasks.lock(KEY, lease=0.4, renew=False)
    await lock.acquire()
    await until_task("it is lost", lambda: lock.lost and lock._grant is None)
    assert await asyncio.ensure_future(lock.acquire())
    assert await lock.release() is False
    assert await lock.owned()
    assert await lock.release()


async def test_a_cancelled_extend_leaves_the_renewal(tasks, server):
    lock = tasks.lock(KEY)
    await lock.acquire()
    ask, asked = lock._ask, asyncio.Event()

    async def without_reply(*args, **options):
        await ask(*args, **options)
        lock._ask = ask
        asked.set()
        await asyncio.sleep(60)

    lock._ask = without_reply
    extend = asyncio.ensure_future(lock.extend(2))
    await asked.wait()
    assert left_at(server, lock) <= 2
    extend.cancel()
    await asyncio.wait({extend})
    await until_task("the lease is long again", lambda: left_at(server, lock) > 2, 5)
    assert await lock.release()


async def test_an_extend_beside_a_release_leaves_nothing(tasks, server):
    lock = tasks.lock(KEY)
    await lock.acquire()
    ask, asked, goes_on = lock._ask, asyncio.Event(), asyncio.Event()

    async def late(*args, **options):
        replies = await ask(*args, **options)
        lock._ask = ask
        asked.set()
        await goes_on.wait()
        return replies

    lock._ask = late
    extend = asyncio.ensure_future(lock.extend(20))
    await asked.wait()
    assert await lock.release()
    goes_on.set()
    await extend
    assert not tasks._io.keeper.held


async def test_a_failed_inner_acquire_of_a_task_leaves_the_session(tasks, server, lose_replies):
    lock = tasks.lock(KEY, session=True, reentrant=True)
    await lock.acquire()
    lose_replies(_tasks.Line, "LOCK.ACQUIRE", 99)
    with pytest.raises(Unavailable):
        await lock.acquire(0.2)
    began = time.monotonic()
    await until_task("a session would have ended", lambda: time.monotonic() > began + 0.5)
    await until_task("one connection stays", lambda: own_lines() == 1, 5)
    assert await lock.owned()
    assert await lock.release()
    assert server.is_free(KEY)


def own_lines():
    """Return how many connections of sessions read."""
    lines = (it for it in gc.get_objects() if type(it) is _tasks.OwnLine)
    return sum(not line._reading.done() for line in lines)


@pytest.mark.parametrize("verb", ["EXTEND", "RELEASE"])
async def test_a_session_closes_the_connections_that_it_leaves(tasks, server, lose_replies, verb):
    lock = tasks.lock(KEY, session=True)
    await lock.acquire()
    lose_replies(_tasks.Line, f"LOCK.{verb}")
    assert await lock.extend(20)
    assert await lock.owned()
    assert own_lines() == 1
    await lock.release()
    await until_task("all are closed", lambda: own_lines() == 0, 5)
    assert server.is_free(KEY)


async def test_a_connection_that_opens_as_its_task_is_cancelled_is_closed(tasks, server):
    servers = tasks._commands.servers
    open, opened = servers.open, []

    async def cancel_as_it_opens(*args):
        result = await open(*args)
        opened.append(result)
        # The task is cancelled in the same turn of the loop in which this result is ready.
        waits.cancel()
        return result

    servers.open = cancel_as_it_opens
    waits = asyncio.ensure_future(tasks.lock(KEY, session=True).acquire())
    await asyncio.wait({waits})
    assert waits.cancelled() and opened
    servers.open = open
    await until_task("it is closed", lambda: own_lines() == 0, 5)
    assert server.is_free(KEY)


async def test_calls_of_a_session_that_connect_at_once_share_the_connection(tasks, server):
    lock = tasks.lock(KEY, session=True, reentrant=True)
    await lock.acquire()
    # Like after a reply that was lost: the session is tied to a connection that it leaves.
    lock._grant.left.append(lock._grant.kept.link)
    lock._grant.kept.link = None
    assert await asyncio.gather(*(lock.extend(20) for _ in range(3))) == [True] * 3
    assert own_lines() == 1
    assert await lock.owned()
    assert await lock.release()
    assert server.is_free(KEY)
