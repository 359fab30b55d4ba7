"""The additions of the drop-in for redis-py's Lock: order, and old locks next to new ones."""

import pytest
import redis
from conftest import KEY, in_thread, until, until_task
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock as OldLock

from redislock import Unavailable, asyncio_compat, compat


@pytest.fixture
def lock(server):
    return compat.Lock(Redis(port=server.port), KEY, sleep=0.02)


def test_old_and_new_locks_exclude_each_other(server, lock):
    old = Redis(port=server.port).lock(KEY, timeout=10, lock_class=OldLock)
    assert old.acquire(blocking=False)
    assert lock.locked()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(blocking_timeout=1)
    waits = in_thread(lock.acquire)
    old.release()
    assert waits() and not server.is_free(KEY)
    assert not old.acquire(blocking=False)


def test_a_lock_without_a_timeout_stays(server, lock):
    assert lock.acquire()
    assert server.redis.pttl(KEY) > 10**12
    lock.release()
    with pytest.raises(LockNotOwnedError):
        with lock:
            owned = [lock.owned()]
            server.redis.delete(KEY)
            owned.append(lock.owned())
    assert owned == [True, False]


def test_a_chosen_token_is_granted_once(server, lock):
    second = compat.Lock(lock.redis, KEY, sleep=0.02)
    assert lock.acquire(token="job-7")
    assert not second.acquire(token="job-7", blocking=False)
    assert not second.acquire(token="job-7", blocking_timeout=1)
    waits = in_thread(second.acquire, token="job-7", blocking_timeout=20)
    lock.release()
    assert waits()
    assert server.left(KEY, "job-7") > 0


def test_a_release_whose_reply_was_lost_was_a_release(server, lock, lose_replies):
    assert lock.acquire()
    lose_replies(lock._locks._commands, "LOCK.RELEASE")
    lock.release()
    assert server.is_free(KEY)


def test_a_late_acquire_of_a_released_lock_is_turned_away(server, lock, lose_replies):
    lost = lose_replies(lock._locks._commands, "LOCK.ACQUIRE")
    with lock:
        pass
    with pytest.raises(redis.ResponseError, match="LEFT"):
        server.redis.execute_command(*lost[0])
    assert server.is_free(KEY)


def test_a_release_that_found_no_server_goes_on(server, lock, monkeypatch):
    async def fail(*_, **__):
        raise Unavailable("no server")

    assert lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(lock._locks._commands, "ask", fail)
        with pytest.raises(redis.ConnectionError):
            lock.release()
        assert not server.is_free(KEY)
    until("it was released in the background", lambda: server.is_free(KEY))


async def test_it_waits_in_the_queue_of_tasks_too(server):
    async with AsyncRedis(port=server.port) as client:
        server.other_holds(KEY)
        lock = client.lock(KEY, timeout=10, lock_class=asyncio_compat.Lock, blocking_timeout=1)
        assert not await lock.acquire()
        await until_task("no place is left", lambda: server.waiters(KEY) == 0)
        server.other_releases(KEY)
        async with lock:
            assert await lock.owned()
            assert await lock.extend(5)
        assert server.is_free(KEY)
