"""Replies that are lost, and races between calls, for threads and for tasks alike.

A call of a thread blocks the event loop of the test, which nothing else needs.
"""

import asyncio

import pytest
from conftest import KEY, Notes, done, elapse, in_use, until, until_task
from redis.exceptions import NoPermissionError, ResponseError

from redislock import Locks, NotHeld, Unavailable
from redislock._crowd import MOST_ASKING

PLAIN_OR_SESSION = pytest.mark.parametrize("session", [False, True], ids=["plain", "session"])


# --- replies that are lost ------------------------------------------------------------------------


async def test_a_late_acquire_of_a_released_grant_is_turned_away(locks, server, lose_replies):
    lost = lose_replies(locks._commands, "LOCK.ACQUIRE" if locks._io.blocks else "LOCK.QUEUE")
    grant = await done(locks.lock(KEY).acquire())
    assert await done(grant.release())
    with pytest.raises(ResponseError, match="LEFT"):
        server.redis.execute_command(*lost[0])


@PLAIN_OR_SESSION
async def test_a_release_without_a_reply_was_a_release(locks, server, lose_replies, session):
    grant = await done(locks.lock(KEY, session=session).acquire())
    lose_replies(locks._commands, "LOCK.RELEASE")
    assert await done(grant.release())
    assert server.is_free(KEY) and not locks._observer.losses


@pytest.mark.parametrize("arrive", [True, False])
async def test_at_least_is_kept_without_a_reply(locks, server, lose_replies, arrive):
    grant = await done(locks.lock(KEY, lease=60, at_least=20).acquire())
    lose_replies(locks._commands, "LOCK.EXTEND", arrive=arrive)
    assert await done(grant.release())
    assert 15 < server.left(KEY, grant.token) <= 20
    server.redis.delete(KEY)


# --- sessions -------------------------------------------------------------------------------------


async def test_a_session_without_its_connection_is_lost(locks, server):
    grant = await done(locks.lock(KEY, lease=2, session=True).acquire())
    await done(grant._hold.lent[1].disconnect())
    await until_task("the server has released it", lambda: server.is_free(KEY))
    await until_task("the loss is told", lambda: locks._observer.losses, 3)
    assert await done(grant.release()) is False


async def test_a_late_tie_doesnt_end_a_later_grant(locks, server, lose_replies):
    lost = lose_replies(locks._commands, "LOCK.EXTEND")
    grant = await done(locks.lock(KEY, session=True).acquire())
    assert lost[0][2] != grant.token.encode()
    with pytest.raises(ResponseError, match="LEFT"):
        server.redis.execute_command("LOCK.ACQUIRE", KEY, lost[0][2])
    assert await done(grant.owned())
    assert await done(grant.release())


async def test_a_session_that_cant_be_tied_leaves_nothing(locks, lose_replies):
    locks._commands.command_timeout = 0.3
    lose_replies(locks._commands, "LOCK.EXTEND", 99)
    with pytest.raises(Unavailable):
        await done(locks.lock(KEY, session=True).acquire(0.5))
    assert not locks._io.keeper.held


async def test_a_session_outlives_a_server_that_stands_still(start, kind):
    server = start()
    locks = kind.locks(server, command_timeout=0.5)
    grant = await done(locks.lock(KEY, lease=9, session=True).acquire(10))
    with server.standing_still():
        await elapse(4.5)
    await until_task("one connection is left", lambda: in_use(locks) == 1)
    await elapse(0.3)
    assert server.left(KEY, grant.token) > 0 and not grant.lost
    assert await done(grant.release())


@pytest.mark.parametrize("kind_name", ["tasks"])
async def test_a_tie_whose_caller_left_ends_with_its_connection(locks, server, monkeypatch):
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
    assert server.is_free(KEY) and len(locks._observer.losses) == 1


async def test_a_hook_that_raises_leaves_the_renewals(locks, caplog):
    class Raises(Notes):
        def granted(self, grant):
            1 / 0

        lost = granted

    told = []
    locks._observer = locks._commands.observer = Raises()
    kept = await done(locks.lock("another", lease=2).acquire())
    lost = await done(locks.lock(KEY, lease=0.4, renew=False, on_lost=told.append).acquire())
    await until_task("the loss is told", lambda: told, 5)
    await elapse(2.5)
    assert "ZeroDivisionError" in caplog.text
    assert await done(kept.release())
    assert await done(lost.release()) is False


async def test_a_grant_that_is_dropped_is_released_and_told(locks, server, caplog):
    grant = await done(locks.lock(KEY).acquire())
    fence = grant.fence
    del grant
    await until_task("it is free", lambda: server.is_free(KEY))
    assert locks._observer.losses == [fence]
    assert "dropped without a release" in caplog.text


@PLAIN_OR_SESSION
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


# --- what the observer and the caller hear --------------------------------------------------------


async def test_a_refused_renewal_is_told_once_and_goes_on_later(server):
    with server.allowing("-lock.extend") as client:
        notes = Notes()
        grant = Locks(client, observer=notes).lock(KEY, lease=4).acquire()
        await until_task("the renewal was refused", lambda: notes.outages)
        # It is repeated.
        await elapse(1)
        server.redis.execute_command("ACL", "SETUSER", "u", "+lock.extend")
        await elapse(2.2)
        assert grant.release()
        assert len(notes.outages) == 1


def test_release_all_goes_on_after_an_error(server):
    with server.allowing("-lock.release", "-lock.mrelease") as client:
        locks = Locks(client)
        grants = [locks.lock(f"key{number}").acquire() for number in range(3)]
        with pytest.raises(NoPermissionError):
            locks.release_all()
        assert not locks._io.keeper.held
        for grant in grants:
            with pytest.raises(NotHeld):
                grant.release()


async def test_a_crowd_is_no_outage_and_hears_of_an_outage_once(start, kind):
    server = start()
    locks = kind.locks(server, command_timeout=1)
    server.other_holds(KEY)
    lock = locks.lock(KEY)
    waits = [kind.begin(lock.acquire) for _ in range(MOST_ASKING)]
    await until_task("they wait", lambda: server.waiters(KEY) == MOST_ASKING)
    assert [await done(lock.acquire(0.2)) for _ in range(10)] == [None] * 10
    assert not locks._observer.outages
    with server.standing_still():
        await until_task("it is told", lambda: locks._observer.outages)
        await elapse(3)
        assert len(locks._observer.outages) == 1
    # An attempt that fails after another one's reply is a new outage.
    server.other_releases(KEY)
    for granted in asyncio.as_completed(waits, timeout=20):
        assert await done((await granted).release())
    assert await done((await done(lock.acquire(5))).release())


async def test_one_caller_computes_and_the_next_one_if_it_fails(locks, server, kind):
    computed = []

    def read():
        return server.redis.get("result")

    def compute():
        computed.append(1)
        if not kind.is_tasks:
            until("another one waits", lambda: server.waiters(KEY) > 0)
        if len(computed) < 3:
            raise ZeroDivisionError
        server.redis.set("result", "7")
        return b"7"

    def once():
        return locks.once(KEY, *functions)

    def of_tasks(function):
        async def awaited():
            return function()

        return awaited

    functions = [of_tasks(it) if kind.is_tasks else it for it in (read, compute)]
    results = await asyncio.gather(*[kind.begin(once) for _ in range(40)], return_exceptions=True)
    assert len(computed) == 3
    assert results.count(b"7") == 38
    assert sum(isinstance(it, ZeroDivisionError) for it in results) == 2
