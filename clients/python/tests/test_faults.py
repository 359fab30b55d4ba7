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
    with pytest.raises(NotHeld, match="isn't held"):
        lock.release()


def assert_session_stays(lock):
    """Check that a held session outlives the connections that it used before."""
    began = time.monotonic()
    until("a session would have ended", lambda: time.monotonic() > began + 0.5)
    assert lock.owned()
    until("the old connections are closed", lambda: not lock._grant.left)
    assert lock.owned()


def test_a_failed_inner_acquire_leaves_the_session(server, lose_replies):
    locks = Locks(Redis(port=server.port), command_timeout=10)
    lock = locks.lock(KEY, session=True, reentrant=True)
    with lock:
        lose_replies(_threads.Link, "LOCK.ACQUIRE", 99)
        with pytest.raises(Unavailable):
            lock.acquire(0.2)
        assert_session_stays(lock)
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
    kept = tasks.lock("another", lease=3)
    lost = tasks.lock(KEY, lease=0.4, renew=False, on_lost=on_lost)
    assert await kept.acquire() and await lost.acquire()
    await until_task("the loss is told", lambda: told, 5)
    began = time.monotonic()
    await until_task("the lease is over", lambda: time.monotonic() > began + 3.5)
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
    lock = tasks.lock(KEY, lease=2, renew=False, reentrant=True)
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
    lock = tasks.lock(KEY, lease=2, renew=False)
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
    assert await tasks.release_all() == 1
    assert server.is_free(KEY)


# --- commands that arrive late --------------------------------------------------------------------


class Late:
    """Holds back what links write behind a command without a reply, like a slow network."""

    def __init__(self, server, monkeypatch, link, lines):
        self.server, self.commands = server, []
        leave, exchange = link.leave, lines.exchange

        def slow(link, commands):
            self.commands += commands
            leave(link, ())

        async def before(link, commands, *args):
            if commands[0][0] == "LOCK.CANCEL":
                self.arrive()
            return await exchange(link, commands, *args)

        monkeypatch.setattr(link, "leave", slow)
        monkeypatch.setattr(lines, "exchange", before)
        # A short wait moves to a new connection, also on a busy machine.
        monkeypatch.setattr("redislock._lock.PROOF_SECONDS", 1.0)
        monkeypatch.setattr("redislock._lock.END_SECONDS", 1.0)

    def arrive(self):
        while self.commands:
            self.server.redis.execute_command(*self.commands.pop(0))


def expire(lock):
    """End the lease by the local clock."""
    grant = lock._grant
    grant.ends_at = time.monotonic()
    lock._io.keeper.hold(grant)


def ask_differently(lock, act):
    """Let ``act`` send the next commands of a lock. It gets the original way."""
    ask = lock._ask

    async def differently(*args, **options):
        lock._ask = ask
        return await act(lambda: ask(*args, **options))

    lock._ask = differently


@pytest.mark.parametrize("token", [None, "chosen"])
def test_the_end_of_a_wait_that_moved_spares_the_next_grant(server, monkeypatch, token):
    late = Late(server, monkeypatch, _threads.Link, _threads.Link)
    lock = Locks(Redis(port=server.port), command_timeout=10).lock(KEY, token=token)
    server.other_holds(KEY)
    assert lock.acquire(1.5) is None
    server.other_releases(KEY)
    assert lock.acquire(10)
    late.arrive()
    assert lock.owned()
    assert lock.release()


def test_a_new_token_follows_a_release_without_a_reply(server, lose_replies):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    with lock:
        token = lock.token
        lose_replies(_threads.Link, "LOCK.RELEASE")
    with lock:
        # The first release arrives late.
        server.redis.execute_command("LOCK.RELEASE", KEY, token, "HOLDS", 0)
        assert lock.owned()
        token = lock.token
    with lock:
        assert lock.token == token


def test_a_chosen_or_held_token_stays_without_a_reply(server, lose_replies):
    locks = Locks(Redis(port=server.port))
    chosen, held = locks.lock(KEY, token="chosen"), locks.lock("another", reentrant=True)
    lose_replies(_threads.Link, "LOCK.ACQUIRE")
    with chosen:
        pass
    with chosen, held:
        assert chosen.token == "chosen"
        token = held.token
        lose_replies(_threads.Link, "LOCK.ACQUIRE")
        with held:
            assert held.token == token
    assert server.is_free(KEY) and server.is_free("another")


def test_a_release_during_a_renewal_leaves_no_lease(server, monkeypatch):
    exchange, sent, arrived = _threads.Link.exchange, threading.Event(), threading.Event()

    async def slow(link, commands, *args):
        is_renewal = commands[0][0] == "LOCK.EXTEND" and not sent.is_set()
        if is_renewal:
            sent.set()
            began = time.monotonic()
            until("it arrives", lambda: time.monotonic() > began + 0.3)
        replies = await exchange(link, commands, *args)
        if is_renewal:
            arrived.set()
        return replies

    monkeypatch.setattr(_threads.Link, "exchange", slow)
    lock = Locks(Redis(port=server.port), command_timeout=10).lock(KEY, lease=60, at_least=20)
    assert lock.acquire()
    token = lock.token
    lock._renew_now(lock._grant)
    assert sent.wait(20)
    assert lock.release()
    assert arrived.wait(20)
    assert 0 < server.redis.execute_command("LOCK.CHECK", KEY, token) <= 20_000


@pytest.mark.parametrize("is_noticed", [True, False])
def test_an_inner_acquire_whose_reply_is_older_than_the_lease_is_lost(server, is_noticed):
    lock = Locks(Redis(port=server.port)).lock(KEY, lease=0.5, renew=False, reentrant=True)
    assert lock.acquire()
    if not is_noticed:
        lock._io.keeper.held.clear()

    async def late(ask):
        replies, asked_at = await ask(), time.monotonic()
        until("the lease is over", lambda: lock.lost and time.monotonic() > asked_at + 0.6)
        return replies

    ask_differently(lock, late)
    with pytest.raises(LockLost):
        lock.acquire()
    assert lock.release() is False
    assert acquired_anew(lock)


def acquired_anew(lock):
    fence = lock.acquire(10)
    return fence and lock.owned() and lock.release()


def test_an_inner_acquire_after_the_loss_leaves_nothing(server):
    lock = Locks(Redis(port=server.port)).lock(KEY, reentrant=True)
    assert lock.acquire()

    async def late(ask):
        expire(lock)
        until("the lost lock is released", lambda: server.is_free(KEY) and not released_later(lock))
        return await ask()

    ask_differently(lock, late)
    with pytest.raises(LockLost):
        lock.acquire()
    until("the new grant is released", lambda: server.is_free(KEY))
    assert lock.release() is False


def released_later(lock):
    """Return True while a lost grant is still to be released."""
    return lock._grant is not None or len(lock._cleanups) > 1


def test_an_inner_acquire_after_the_loss_spares_the_next_grant(server):
    lock = Locks(Redis(port=server.port), command_timeout=10).lock(KEY, reentrant=True)
    assert lock.acquire()
    fences, began = [], []

    async def late(ask):
        expire(lock)
        until("the lost lock is released", lambda: server.is_free(KEY) and not released_later(lock))
        began.append(in_thread(holds_for_a_while))
        start = time.monotonic()
        until("another thread acquires it", lambda: fences or time.monotonic() > start + 0.3)
        return await ask()

    def holds_for_a_while():
        with lock.acquire(10) as fence:
            fences.append(fence)
            start = time.monotonic()
            until("it is held", lambda: time.monotonic() > start + 0.5)
            return lock.owned()

    ask_differently(lock, late)
    with pytest.raises(LockLost):
        lock.acquire()
    assert began[0]() is True
    assert lock.release() is False


@pytest.mark.parametrize("token", [None, "chosen"])
async def test_the_end_of_a_tasks_wait_that_moved_spares_the_next_grant(
    tasks, server, monkeypatch, token
):
    late = Late(server, monkeypatch, _tasks.OwnLine, _tasks.Line)
    lock = tasks.lock(KEY, session=True, token=token)
    server.other_holds(KEY)
    assert await lock.acquire(1.5) is None
    server.other_releases(KEY)
    assert await lock.acquire(10)
    late.arrive()
    assert await lock.owned()
    assert await lock.release()


async def test_a_new_token_follows_a_tasks_release_without_a_reply(tasks, server, lose_replies):
    lock = tasks.lock(KEY)
    async with lock:
        token = lock.token
        lose_replies(_tasks.Line, "LOCK.RELEASE")
    async with lock:
        server.redis.execute_command("LOCK.RELEASE", KEY, token, "HOLDS", 0)
        assert await lock.owned()


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("at_least", [0, 20])
async def test_the_last_hold_may_be_that_of_a_cancelled_acquire(
    tasks, server, monkeypatch, is_sent, at_least
):
    lock = tasks.lock(KEY, lease=60, reentrant=True, at_least=at_least)
    await lock.acquire()
    token, grant, asked = lock.token, lock._grant, asyncio.Event()
    if is_sent:
        exchange = _tasks.Line.exchange

        async def without_reply(*args):
            replies = await exchange(*args)
            if not asked.is_set():
                asked.set()
                await asyncio.sleep(60)
            return replies

        monkeypatch.setattr(_tasks.Line, "exchange", without_reply)
    else:

        async def never(ask):
            asked.set()
            await asyncio.sleep(60)

        ask_differently(lock, never)
    inner = asyncio.ensure_future(lock.acquire())
    await asked.wait()
    assert await lock.release()
    inner.cancel()
    await asyncio.wait({inner})
    if not grant.is_ended:
        lock._renew_now(grant)

    def left():
        return server.redis.execute_command("LOCK.CHECK", KEY, token)

    await until_task("it is given back", lambda: left() <= at_least * 1000)
    await until_task("all is sent", lambda: not tasks._io._running)
    assert bool(left()) is bool(at_least)
    assert not lock.lost and ("lost",) not in tasks._observer.seen
    if at_least:
        assert lock.token != token
    else:
        assert await lock.acquire(10)
        assert await lock.release()


async def test_a_cancelled_inner_acquire_after_the_loss_leaves_nothing(tasks, server, monkeypatch):
    lock = tasks.lock(KEY, reentrant=True)
    await lock.acquire()
    exchange, asked = _tasks.Line.exchange, asyncio.Event()

    async def late(link, commands, *args):
        if commands[0][0] != "LOCK.ACQUIRE" or asked.is_set():
            return await exchange(link, commands, *args)
        expire(lock)
        await until_task("the lost lock is released", lambda: server.is_free(KEY))
        await until_task("the reply is read", lambda: not released_later(lock))
        await exchange(link, commands, *args)
        asked.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(_tasks.Line, "exchange", late)
    inner = asyncio.ensure_future(lock.acquire())
    await asked.wait()
    assert not server.is_free(KEY)
    inner.cancel()
    await asyncio.wait({inner})
    await until_task("the new grant is released", lambda: server.is_free(KEY))
    assert await lock.release() is False
    assert await lock.acquire(10)
    assert await lock.owned()
    assert await lock.release()


def test_a_new_token_leaves_the_keys(server):
    client = Redis(port=server.port)
    locks = Locks(client)
    mutable = ["a"]
    for keys in (mutable, iter(["a"])):
        lock = locks.lock(keys)
        mutable[:] = ["b"]
        lock._is_token_spent = True
        assert lock.acquire(10)
        assert not server.is_free("a")
        assert server.is_free("b")
        assert lock.release()


def test_a_cancelled_wait_for_a_cleanup_leaves_the_others_their_limits(own_server):
    locks = Locks(Redis(port=own_server.port), command_timeout=0.5)
    lock = locks.lock(KEY)
    assert lock.acquire(10)
    assert lock.release()
    with standing_still(own_server):
        with pytest.raises(Unavailable):
            lock.acquire(0.3)
        assert lock._cleanups
        waits = in_thread(lock.acquire)
        until("it waits for the cleanup", lambda: lock._calls)
        lock.cancel()
        with pytest.raises(Cancelled):
            waits()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            lock.acquire(1)
        assert 1 <= time.monotonic() - began < 4
