"""Calls of one lock that overlap, and replies that say less than they seem to."""

import asyncio
import threading
import time

import pytest
import redis.asyncio.connection
import redis.connection
from conftest import until
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import BusyLoadingError, NoPermissionError
from test_bad_days import Notes, standing_still
from test_faults import ask_differently, assert_session_stays, expire, left_at, tasks  # noqa: F401
from test_tasks import until as until_task
from test_threads import in_thread

from redislock import Locks, NotHeld, Unavailable, _tasks, _threads
from redislock.asyncio import Locks as AsyncLocks

KEY = "k"


@pytest.fixture
def locks(server):
    # Long, because the machine may be busy.
    return Locks(Redis(port=server.port), command_timeout=10, observer=Notes())


def believed(lock):
    """Return the lease by the local clock in seconds."""
    return lock._grant.ends_at - time.monotonic()


def is_safe(server, lock):
    """Return True if the lease at the server is known to last as long as it is believed to."""
    at_server = left_at(server, lock)
    return believed(lock) <= at_server + 0.1


async def elapse(seconds):
    began = time.monotonic()
    await until_task("the time has passed", lambda: time.monotonic() > began + seconds)


# --- the order of renewals, extends and inner acquires --------------------------------------------


async def test_an_extend_beside_an_inner_acquire_is_believed_as_it_is_kept(tasks, server):
    lock = tasks.lock(KEY, lease=5, renew=False, reentrant=True)
    await lock.acquire()
    assert (await asyncio.gather(lock.extend(60), lock.acquire()))[0]
    assert is_safe(server, lock)
    assert left_at(server, lock) > 5
    assert await lock.release() and await lock.release()


@pytest.mark.parametrize("lease,extended", [(60, 5), (5, 60)])
def test_a_renewals_late_reply_spares_a_later_extend(server, locks, lease, extended):
    lock = locks.lock(KEY, lease=lease)
    assert lock.acquire()
    asked, extended_already = threading.Event(), threading.Event()

    async def late(ask):
        replies = await ask()
        asked.set()
        # The extend may also wait for this reply.
        extended_already.wait(1)
        return replies

    ask_differently(lock, late)
    lock._renew_now(lock._grant)
    assert asked.wait(20)
    assert lock.extend(extended)
    extended_already.set()
    until("the renewal has ended", lambda: lock._grant.renewal._is_open)
    assert is_safe(server, lock)
    assert lock._grant.lease == extended
    assert lock.release()


# --- replies that are an outage -------------------------------------------------------------------


def test_an_outage_reply_to_an_inner_acquire_leaves_the_session(own_server):
    lock = Locks(Redis(port=own_server.port)).lock(KEY, session=True, reentrant=True)
    with lock:
        own_server.redis.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="OOM|memory"):
            lock.acquire(0.2)
        own_server.redis.config_set("maxmemory", 0)
        assert_session_stays(lock)
    assert own_server.is_free(KEY)


async def test_an_outage_reply_to_an_inner_acquire_of_a_task_leaves_the_session(own_server):
    client = AsyncRedis(port=own_server.port)
    locks = AsyncLocks(client)
    lock = locks.lock(KEY, session=True, reentrant=True)
    async with lock:
        own_server.redis.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="OOM|memory"):
            await lock.acquire(0.2)
        own_server.redis.config_set("maxmemory", 0)
        await elapse(0.5)
        assert await lock.owned()
        await until_task("the old connections are closed", lambda: not lock._grant.left)
        assert await lock.owned()
    assert own_server.is_free(KEY)
    await locks.aclose()
    await client.aclose()


def test_a_release_that_meets_a_loading_server_and_then_no_lock_is_a_loss(
    server, locks, monkeypatch
):
    lock = locks.lock(KEY)
    assert lock.acquire()
    server.redis.delete(KEY)
    link, armed = redis.connection.AbstractConnection, [1]
    read = link.read_response

    def loading(raw, *args, **options):
        reply = read(raw, *args, **options)
        if armed and reply == 0:
            armed.pop()
            raw.disconnect()
            raise BusyLoadingError("Redis is loading the dataset in memory")
        return reply

    monkeypatch.setattr(link, "read_response", loading)
    assert lock.release() is False
    assert not armed


async def test_a_tasks_release_that_meets_a_loading_server_and_then_no_lock_is_a_loss(
    tasks, server, monkeypatch
):
    link, armed = redis.asyncio.connection.AbstractConnection, []
    read = link.read_response

    async def loading(raw, *args, **options):
        reply = await read(raw, *args, **options)
        if armed and reply == 0:
            armed.pop()
            await raw.disconnect(nowait=True)
            raise BusyLoadingError("Redis is loading the dataset in memory")
        return reply

    monkeypatch.setattr(link, "read_response", loading)
    lock = tasks.lock(KEY)
    await lock.acquire()
    server.redis.delete(KEY)
    armed.append(1)
    assert await lock.release() is False
    assert not armed


# --- losses ---------------------------------------------------------------------------------------


def test_an_extend_whose_reply_comes_after_the_loss_returns_false(server, locks):
    lock = locks.lock(KEY, renew=False)
    assert lock.acquire()

    async def late(ask):
        replies = await ask()
        expire(lock)
        until("the loss is told", lambda: ("lost",) in locks._observer.seen)
        return replies

    ask_differently(lock, late)
    assert lock.extend(20) is False
    assert lock.release() is False


async def test_a_release_of_a_session_beside_an_extend_is_no_loss(tasks, server):
    lock = tasks.lock(KEY, session=True)
    await lock.acquire()
    asked = []

    async def late(ask):
        replies = await ask()
        # The release is sent before the extend's reply is looked at.
        asked.append(asyncio.ensure_future(lock.release()))
        while lock._grant is not None:
            await asyncio.sleep(0)
        return replies

    ask_differently(lock, late)
    await lock.extend(20)
    assert await asked[0]
    assert ("lost",) not in tasks._observer.seen
    assert server.is_free(KEY)


def test_an_outage_behind_another_thread_of_the_object_is_no_contention(own_server):
    lock = Locks(Redis(port=own_server.port), command_timeout=5, observer=Notes()).lock(KEY)
    with lock:
        pass
    with standing_still(own_server):
        first = in_thread(lock.acquire)
        until("it has the turn", lambda: lock._turn._is_taken)
        with pytest.raises(Unavailable, match="no answer"):
            lock.acquire(0.2)
        assert lock._calls
    assert first()
    assert lock.release()


async def test_an_outage_behind_another_task_of_the_object_is_no_contention(own_server):
    client = AsyncRedis(port=own_server.port)
    locks = AsyncLocks(client, command_timeout=5, observer=Notes())
    lock = locks.lock(KEY)
    async with lock:
        pass
    with standing_still(own_server):
        first = asyncio.ensure_future(lock.acquire())
        await until_task("it has the turn", lambda: lock._turn._is_taken)
        with pytest.raises(Unavailable, match="no answer"):
            await lock.acquire(0.2)
    assert await first
    assert await lock.release()
    await locks.aclose()
    await client.aclose()


def test_a_try_behind_another_thread_needs_no_right_to_check(server):
    server.redis.execute_command(
        "ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all", "-lock.check"
    )
    lock = Locks(Redis(port=server.port, username="u", password=""), command_timeout=10).lock(KEY)
    server.other_holds(KEY)
    first = in_thread(lock.acquire)
    server.until_waiting(KEY)
    assert lock.try_acquire() is None
    server.other_releases(KEY)
    assert first()
    assert lock.release()
    server.redis.execute_command("ACL", "DELUSER", "u")


def test_a_loss_that_an_inner_release_meets_is_told_once(server, locks):
    told = []
    lock = locks.lock(KEY, renew=False, reentrant=True, on_lost=told.append)
    assert lock.acquire() and lock.acquire()

    async def late(ask):
        server.redis.delete(KEY)
        expire(lock)
        until("the loss is told", lambda: told)
        return await ask()

    ask_differently(lock, late)
    assert lock.release() is False
    began = time.monotonic()
    until("it would be told again", lambda: time.monotonic() > began + 0.3)
    assert told == [lock]


# --- replies that are lost ------------------------------------------------------------------------


def test_a_release_that_is_sent_again_and_finds_a_part_of_its_keys_is_a_loss(
    server, locks, monkeypatch
):
    lock = locks.lock(["{k}1", "{k}2"])
    assert lock.acquire()
    server.redis.delete("{k}1")
    lose_commands(monkeypatch, "LOCK.MRELEASE")
    assert lock.release() is False


def test_a_release_that_is_sent_again_and_finds_no_lock_for_at_least_is_a_loss(
    server, locks, lose_replies
):
    lock = locks.lock(KEY, at_least=60)
    assert lock.acquire()
    server.redis.delete(KEY)
    lose_replies(_threads.Link, "LOCK.EXTEND")
    assert lock.release() is False


def lose_commands(monkeypatch, verb):
    """Lose the next command of a verb with its connection, before the server gets it."""
    exchange, left = _threads.Link.exchange, [1]

    async def lossy(link, commands, *args):
        if left and commands[0][0] == verb:
            left.pop()
            raise redis.ConnectionError("the command was lost")
        return await exchange(link, commands, *args)

    monkeypatch.setattr(_threads.Link, "exchange", lossy)


def test_a_grant_whose_confirmation_is_refused_is_released(server):
    server.redis.execute_command("ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all")
    locks = Locks(Redis(port=server.port, username="u", password=""), command_timeout=10)
    lock = locks.lock(KEY, lease=3)

    async def late(ask):
        replies, began = await ask(), time.monotonic()
        server.redis.execute_command("ACL", "SETUSER", "u", "-lock.acquire")
        until("a third of the lease is over", lambda: time.monotonic() > began + 1.1)
        # So it can't be the end of the lease that frees the key.
        server.redis.execute_command("LOCK.EXTEND", KEY, lock.token, "PX", 600_000)
        return replies

    ask_differently(lock, late)
    with pytest.raises(NoPermissionError):
        lock.acquire(5)
    until("the grant is released", lambda: server.is_free(KEY))
    server.redis.execute_command("ACL", "DELUSER", "u")


def test_the_cleanup_of_a_chosen_token_spares_the_grant_of_another_object(own_server):
    locks = Locks(Redis(port=own_server.port), command_timeout=3, observer=Notes())
    first, second = (locks.lock(KEY, token="chosen") for _ in range(2))
    begun, goes_on, ask = threading.Event(), threading.Event(), first._ask
    with first:
        pass

    async def held_back(*args, **options):
        begun.set()
        goes_on.wait(20)
        return await ask(*args, **options)

    with standing_still(own_server):
        with pytest.raises(Unavailable):
            first.acquire(0.2)
        first._ask = held_back
        # An earlier try may still be on its way.
        assert begun.wait(20)
    outcome = in_thread(second.acquire)
    began = time.monotonic()
    until("it acquires or waits", lambda: second.fence or time.monotonic() > began + 0.5)
    goes_on.set()
    assert outcome()
    until("the cleanup is done", lambda: not first._cleanups)
    assert second.owned()
    assert second.release()


async def test_tasks_of_several_objects_wait_for_one_cleanup():
    gate = _tasks.Gate()
    waits = [asyncio.ensure_future(gate.wait(60)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.open()
    assert await asyncio.wait_for(asyncio.gather(*waits), 20) == [True] * 3


# --- renewals that aren't due ---------------------------------------------------------------------


def test_an_extend_without_a_reply_isnt_renewed_without_renewal(server, locks, lose_replies):
    lock = locks.lock(KEY, renew=False)
    assert lock.acquire()
    lose_replies(_threads.Link, "LOCK.EXTEND", 99)
    lock._commands.command_timeout = 0.3
    with pytest.raises(Unavailable):
        lock.extend(5)
    assert lock._grant.renewal is None
    assert is_safe(server, lock)
    assert lock.release()


def test_a_failed_extend_past_max_hold_isnt_renewed(server, locks, lose_replies):
    lock = locks.lock(KEY, lease=20, max_hold=0.2)
    assert lock.acquire()
    assert lock.extend(60)
    began = time.monotonic()
    until("max_hold is over", lambda: time.monotonic() > began + 0.3)
    lose_replies(_threads.Link, "LOCK.EXTEND", 99)
    lock._commands.command_timeout = 0.3
    with pytest.raises(Unavailable):
        lock.extend(20)
    assert is_safe(server, lock)
    assert lock._grant.renewal is None and not locks._observer.seen[1:]
    assert lock.release()


def test_release_all_goes_on_after_an_error(server):
    server.redis.execute_command(
        "ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all", "-lock.release"
    )
    locks = Locks(Redis(port=server.port, username="u", password=""), observer=Notes())
    held = [locks.lock(f"key{number}") for number in range(3)]
    for lock in held:
        lock.acquire()
    with pytest.raises(NoPermissionError):
        locks.release_all()
    assert not locks._io.keeper.held
    for lock in held:
        with pytest.raises(NotHeld):
            lock.release()
    server.redis.execute_command("ACL", "DELUSER", "u")


def test_a_wait_without_a_limit_tells_of_each_outage(own_server, monkeypatch):
    monkeypatch.setattr("redislock._lock.PROOF_SECONDS", 1.0)
    notes = Notes()
    lock = Locks(Redis(port=own_server.port), observer=notes).lock(KEY)
    own_server.other_holds(KEY)
    outcome = in_thread(lock.acquire)

    def outages():
        return sum(it[0] == "unavailable" for it in notes.seen)

    def connections():
        return own_server.redis.info("stats")["total_connections_received"]

    for count in (1, 2):
        own_server.until_waiting(KEY)
        connected = connections()
        until("the wait has moved twice", lambda: connections() >= connected + 2)
        with standing_still(own_server):
            until("the outage is told", lambda: outages() == count)
    own_server.other_releases(KEY)
    assert outcome()
    assert ("waited", "granted") in notes.seen
    assert lock.release()
