"""Replies that are lost, and races between calls, for threads and for tasks alike.

A call of a thread blocks the event loop of the test, which nothing else needs.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import Notes, done, until_task
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import NoPermissionError, ResponseError

from redislock import Locks, NotHeld, Unavailable
from redislock._crowd import MOST_ASKING
from redislock.asyncio import Locks as AsyncLocks

KEY = "k"
KINDS = pytest.mark.parametrize("kind", [Locks, AsyncLocks], ids=["threads", "tasks"])


def locks_of(kind, server, **options):
    client = Redis if kind is Locks else AsyncRedis
    # Long, because the machine may be busy.
    options = {"command_timeout": 10, "observer": Notes(), **options}
    return kind(client(port=server.port), **options)


@pytest.fixture(params=[Locks, AsyncLocks], ids=["threads", "tasks"])
async def locks(server, request):
    locks = locks_of(request.param, server)
    yield locks
    await done(locks.close() if request.param is Locks else locks.aclose())


async def elapse(seconds):
    began = time.monotonic()
    await until_task("the time has passed", lambda: time.monotonic() > began + seconds)


def in_use(locks):
    """Return how many connections are out of their pools, except those for messages."""
    listeners = [it._connection for it in getattr(locks._io, "_listeners", {}).values()]
    return sum(
        connection not in listeners
        for pool in locks._io.pools.values()
        for connection in pool._in_use_connections
    )


# --- replies that are lost ------------------------------------------------------------------------


async def test_a_late_acquire_of_a_released_grant_is_turned_away(locks, server, lose_replies):
    verb = "LOCK.ACQUIRE" if locks._io.blocks else "LOCK.QUEUE"
    lost = lose_replies(locks._commands, verb)
    grant = await done(locks.lock(KEY).acquire())
    assert await done(grant.release())
    with pytest.raises(ResponseError, match="LEFT"):
        server.redis.execute_command(*lost[0])
    assert server.is_free(KEY)


@pytest.mark.parametrize("options", [{}, {"session": True}], ids=["plain", "session"])
async def test_a_release_without_a_reply_was_a_release(locks, server, lose_replies, options):
    grant = await done(locks.lock(KEY, **options).acquire())
    lose_replies(locks._commands, "LOCK.RELEASE")
    assert await done(grant.release())
    assert server.is_free(KEY)
    await until_task("no connection is in use", lambda: in_use(locks) == 0)
    assert locks._observer.count("lost") == 0


async def test_a_release_without_a_reply_of_a_part_of_the_keys_is_a_loss(
    locks, server, lose_replies
):
    grant = await done(locks.lock(["{k}1", "{k}2"]).acquire())
    server.redis.delete("{k}1")
    assert await done(grant.release()) is False
    assert server.is_free("{k}2")


@pytest.mark.parametrize("arrive", [True, False])
async def test_at_least_is_kept_without_a_reply(locks, server, lose_replies, arrive):
    grant = await done(locks.lock(KEY, lease=60, at_least=20).acquire())
    lose_replies(locks._commands, "LOCK.EXTEND", arrive=arrive)
    assert await done(grant.release())
    assert 15 < server.left(grant) <= 20
    with pytest.raises(NotHeld):
        await done(grant.release())


# --- sessions -------------------------------------------------------------------------------------


async def test_a_session_without_its_connection_is_lost(locks, server):
    grant = await done(locks.lock(KEY, lease=2, session=True).acquire())
    connection = grant._hold.lent[1]
    await done(connection.disconnect())
    await until_task("the server has released it", lambda: server.is_free(KEY))
    await until_task("the loss is told", lambda: locks._observer.count("lost"), 3)
    assert await done(grant.release()) is False
    await until_task("no connection is in use", lambda: in_use(locks) == 0)


async def test_a_late_tie_doesnt_end_a_later_grant(locks, server, lose_replies):
    lost = lose_replies(locks._commands, "LOCK.EXTEND")
    grant = await done(locks.lock(KEY, session=True).acquire())
    assert lost[0][2] != grant.token.encode()
    with pytest.raises(ResponseError, match="LEFT"):
        server.redis.execute_command("LOCK.ACQUIRE", KEY, lost[0][2])
    assert await done(grant.owned())
    assert await done(grant.release())
    await until_task("no connection is in use", lambda: in_use(locks) == 0)


async def test_a_session_that_cant_be_tied_leaves_nothing(locks, server, lose_replies):
    locks._commands.command_timeout = 0.3
    lose_replies(locks._commands, "LOCK.EXTEND", 99)
    with pytest.raises(Unavailable):
        await done(locks.lock(KEY, session=True).acquire(0.5))
    await until_task("it is released", lambda: server.is_free(KEY))
    await until_task("no connection is in use", lambda: in_use(locks) == 0)
    assert not locks._io.keeper.held


@KINDS
async def test_a_session_outlives_a_server_that_stands_still(own_server, kind):
    locks = locks_of(kind, own_server, command_timeout=0.5)
    grant = await done(locks.lock(KEY, lease=9, session=True).acquire(10))
    with own_server.standing_still():
        await elapse(4.5)
    await until_task("one connection is left", lambda: in_use(locks) == 1)
    await elapse(0.3)
    assert own_server.left(grant) > 0 and not grant.lost
    assert await done(grant.release())
    await done(locks.close() if kind is Locks else locks.aclose())


async def test_a_tie_whose_caller_left_ends_with_its_connection(server, monkeypatch):
    locks = locks_of(AsyncLocks, server)
    grant = await locks.lock(KEY).acquire()
    grant.detach()
    receive, verbs, is_over = locks._io.receive, iter(["take over", "tie"]), asyncio.Event()

    async def receive_later(*args):
        if next(verbs) == "tie":
            await is_over.wait()
        return await receive(*args)

    monkeypatch.setattr(locks._io, "receive", receive_later)
    adopts = asyncio.ensure_future(locks.adopt(KEY, grant.token, grant.fence, session=True))
    await until_task("it is tied", lambda: "b'session', 1" in str(server.info(KEY)))
    adopts.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adopts
    assert not locks._io.keeper.held
    is_over.set()
    await until_task("the server has released it", lambda: server.is_free(KEY))
    await locks.aclose()


# --- losses ---------------------------------------------------------------------------------------


async def test_a_loss_during_a_release_is_a_loss(locks, server, monkeypatch):
    grant = await done(locks.lock(KEY).acquire())
    end = grant._hold._end

    def lose_first(state):
        monkeypatch.undo()
        grant._hold.lose()
        return end(state)

    monkeypatch.setattr(grant._hold, "_end", lose_first)
    assert await done(grant.release()) is False
    assert server.is_free(KEY) and locks._observer.count("lost") == 1


async def test_a_hook_that_raises_leaves_the_renewals(locks, server, caplog):
    class Raises(Notes):
        def granted(self, grant):
            1 / 0

        def lost(self, grant):
            1 / 0

    told = []
    locks._observer = locks._commands.observer = Raises()
    kept = await done(locks.lock("another", lease=2).acquire())
    lock = locks.lock(KEY, lease=0.4, renew=False, on_lost=told.append)
    lost = await done(lock.acquire())
    await until_task("the loss is told", lambda: told, 5)
    await elapse(2.5)
    assert "ZeroDivisionError" in caplog.text
    assert await done(kept.release())
    assert await done(lost.release()) is False


async def test_a_refused_renewal_is_told_once_and_goes_on_later(server):
    with server.allowing("-lock.extend") as settings:
        notes = Notes()
        lock = Locks(Redis(**settings), observer=notes).lock(KEY, lease=4)
        grant = lock.acquire()
        with pytest.raises(NoPermissionError):
            grant.extend(9)
        await until_task("the renewal was refused", lambda: notes.count("unavailable"))
        # It is repeated.
        await elapse(1)
        server.redis.execute_command("ACL", "SETUSER", "u", "+lock.extend")
        await elapse(2.2)
        assert grant.release()
        assert notes.count("unavailable") == 1


async def test_a_grant_that_is_dropped_is_released_and_told(locks, server, caplog):
    grant = await done(locks.lock(KEY).acquire())
    fence = grant.fence
    del grant
    await until_task("it is free", lambda: server.is_free(KEY))
    assert locks._observer.seen[-1] == ("lost", fence)
    assert "dropped without a release" in caplog.text


@pytest.mark.parametrize("session", [False, True])
async def test_a_grant_is_detached_and_adopted(locks, server, session):
    grant = await done(locks.lock(KEY, lease=2).acquire())
    token, fence = grant.token, grant.fence
    grant.detach()
    for act in (grant.detach, grant.release):
        with pytest.raises(NotHeld):
            await done(act())
    del grant
    adopted = await done(locks.adopt(KEY, token, fence, lease=2, session=session))
    await elapse(2.2)
    assert (adopted.fence, adopted.token, adopted.lost) == (fence, token, False)
    assert await done(adopted.owned())
    assert await done(adopted.release())
    assert await done(locks.adopt(KEY, token, fence)) is None
    # A late command of the first process would bring the grant back.
    with pytest.raises(ResponseError, match="LEFT"):
        server.redis.execute_command("LOCK.ACQUIRE", KEY, token)


async def test_release_all_goes_on_after_an_error(server):
    with server.allowing("-lock.release", "-lock.mrelease") as settings:
        locks = Locks(Redis(**settings), observer=Notes())
        grants = [locks.lock(f"key{number}").acquire() for number in range(3)]
        with pytest.raises(NoPermissionError):
            locks.release_all()
        assert not locks._io.keeper.held
        for grant in grants:
            with pytest.raises(NotHeld):
                grant.release()


@KINDS
async def test_an_outage_of_many_waiters_is_told_once(own_server, kind):
    locks = locks_of(kind, own_server, command_timeout=1)
    own_server.other_holds(KEY)
    lock, loop = locks.lock(KEY), asyncio.get_running_loop()

    def wait():
        return loop.run_in_executor(None, lock.acquire) if kind is Locks else lock.acquire()

    waits = [asyncio.ensure_future(wait()) for _ in range(4)]
    await until_task("all wait", lambda: own_server.waiters(KEY) == 4)
    with own_server.standing_still():
        await until_task("it is told", lambda: locks._observer.count("unavailable"))
        await elapse(3)
    assert locks._observer.count("unavailable") == 1
    own_server.other_releases(KEY)
    for _ in waits:
        ended, waits = await asyncio.wait(waits, timeout=20, return_when="FIRST_COMPLETED")
        for it in ended:
            assert await done((await it).release())
    assert not waits and locks._observer.count("unavailable") == 1
    await done(locks.close() if kind is Locks else locks.aclose())


@KINDS
async def test_a_crowd_of_waiters_is_no_outage(server, kind):
    locks, loop = locks_of(kind, server), asyncio.get_running_loop()
    server.other_holds(KEY)
    lock = locks.lock(KEY)
    threads = ThreadPoolExecutor(MOST_ASKING)

    def wait():
        return loop.run_in_executor(threads, lock.acquire) if kind is Locks else lock.acquire()

    waits = [asyncio.ensure_future(wait()) for _ in range(MOST_ASKING)]
    try:
        await until_task("they wait", lambda: server.waiters(KEY) == MOST_ASKING)
        refusals = [await done(lock.acquire(0.2)) for _ in range(10)]
    finally:
        server.other_releases(KEY)
        for it in asyncio.as_completed(waits):
            assert await done((await it).release())
    assert refusals == [None] * 10
    assert await done((await done(lock.acquire(5))).release())
    await done(locks.close() if kind is Locks else locks.aclose())
