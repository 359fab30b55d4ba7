"""The additions of the drop-in for redis-py's Lock: order, and old locks next to new ones."""

import threading

import pytest
import redis
from conftest import in_thread, until, until_task
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock as OldLock

from redislock import Unavailable, asyncio_compat, compat

KEY = "k"


def test_old_and_new_locks_exclude_each_other(server):
    client = Redis(port=server.port)
    old = client.lock(KEY, timeout=10, lock_class=OldLock)
    new = client.lock(KEY, timeout=10, sleep=0.02, lock_class=compat.Lock)
    assert old.acquire(blocking=False)
    assert new.locked()
    assert not new.acquire(blocking=False)
    assert not new.acquire(blocking_timeout=1)
    waits = threading.Thread(target=new.acquire, daemon=True)
    waits.start()
    old.release()
    waits.join(20)
    until("the new one holds it", lambda: not server.is_free(KEY))
    assert not old.acquire(blocking=False)
    server.redis.delete(KEY)


def test_a_lock_without_a_timeout_stays(server):
    lock = compat.Lock(Redis(port=server.port), KEY)
    assert lock.acquire()
    assert server.redis.pttl(KEY) > 10**12
    lock.release()
    with pytest.raises(LockNotOwnedError):
        with compat.Lock(Redis(port=server.port), KEY):
            server.redis.delete(KEY)


def test_a_chosen_token_is_granted_once(server):
    client = Redis(port=server.port)
    first, second = (client.lock(KEY, sleep=0.02, lock_class=compat.Lock) for _ in range(2))
    assert first.acquire(token="job-7")
    assert not second.acquire(token="job-7", blocking=False)
    assert not second.acquire(token="job-7", blocking_timeout=1)
    waits = in_thread(second.acquire, token="job-7", blocking_timeout=20)
    first.release()
    assert waits()
    assert server.redis.execute_command("LOCK.CHECK", KEY, "job-7") > 0


def test_a_release_whose_reply_was_lost_was_a_release(server, lose_replies):
    lock = compat.Lock(Redis(port=server.port), KEY)
    assert lock.acquire()
    lose_replies(lock._locks._commands, "LOCK.RELEASE")
    lock.release()
    assert server.is_free(KEY)


def test_a_late_acquire_of_a_released_lock_is_turned_away(server, lose_replies):
    lock = compat.Lock(Redis(port=server.port), KEY)
    lost = lose_replies(lock._locks._commands, "LOCK.ACQUIRE")
    with lock:
        pass
    with pytest.raises(redis.ResponseError, match="LEFT"):
        server.redis.execute_command(*lost[0])
    assert server.is_free(KEY)


def test_a_release_that_found_no_server_goes_on(server):
    lock = compat.Lock(Redis(port=server.port), KEY)
    assert lock.acquire()
    commands = lock._locks._commands
    ask = commands.ask

    async def fail(*_, **__):
        raise Unavailable("no server")

    commands.ask = fail
    with pytest.raises(redis.ConnectionError):
        lock.release()
    assert not server.is_free(KEY)
    commands.ask = ask
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
