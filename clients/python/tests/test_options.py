"""Arguments that are refused, and the texts and classes of errors."""

import pytest
import redis
from conftest import Notes, Server
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

import redislock
from redislock import Locks, ModuleMissing
from redislock.asyncio import Locks as AsyncLocks

KEY = "k"

WRONG = {
    "lease": [0, -1, float("nan"), float("inf"), 1e300, "5", None, True],
    "keep": [0, -1, float("nan"), "5"],
    "wait": [-1, float("nan"), float("inf"), "5"],
    "margin": [-1, 30, float("nan"), "5"],
    "max_hold": [0, -1, float("nan"), float("inf")],
    "at_least": [-1, float("nan"), "5"],
    "limit": [0, -1, 2**32, 1.5, True],
    "permits": [1],
    "data": ["d" * 1025, 5],
    "replicas": [0, 1001, 1.0],
    "on_lost": [5],
}


@pytest.mark.parametrize("name,value", [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_option_is_refused_by_its_name(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        Locks(Redis(port=1)).lock(KEY, **{name: value})


@pytest.mark.parametrize("keys", [[], [5], ["a", b"a"], 5, None])
def test_wrong_keys_are_refused(keys):
    with pytest.raises((ValueError, TypeError), match="keys"):
        Locks(Redis(port=1)).lock(keys)


async def test_other_wrong_arguments_are_refused(server):
    for client in (AsyncRedis(), object(), None):
        with pytest.raises(TypeError, match="client"):
            Locks(client)
    with pytest.raises(TypeError, match="client"):
        AsyncLocks(Redis())
    with pytest.raises(TypeError, match="observer"):
        Locks(Redis(), observer=5)
    with pytest.raises(ValueError, match="command_timeout"):
        Locks(Redis(), command_timeout=0)
    with pytest.raises(ValueError, match="permits"):
        Locks(Redis()).lock(KEY, limit=2, permits=3)
    with pytest.raises(TypeError, match="reentrant"):
        AsyncLocks(AsyncRedis()).lock(KEY, reentrant=True)
    with pytest.raises(TypeError, match="leese"):
        Locks(Redis()).lock(KEY, leese=5)
    for token in ("", "*", b"*", "t" * 257, 5):
        with pytest.raises((ValueError, TypeError), match="token"):
            Locks(Redis(port=1)).adopt(KEY, token, 1)
    lock = Locks(Redis(port=server.port)).lock(KEY)
    for timeout in (-1, float("nan"), float("inf"), "5", True):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            lock.acquire(timeout)
    with lock as grant:
        for lease in (0, -1, float("nan"), None):
            with pytest.raises((ValueError, TypeError), match="lease"):
                grant.extend(lease)
        assert grant.left() > 25


def test_keys_may_be_any_iterable_and_stay(server):
    keys = ["a"]
    for given in (keys, iter(["a"])):
        lock = Locks(Redis(port=server.port)).lock(given)
        keys[:] = ["b"]
        with lock as grant:
            assert grant.keys == lock.keys == ("a",)
            assert not server.is_free("a") and server.is_free("b")


def test_a_server_without_the_module_is_named_so():
    server = Server("bare")
    try:
        with pytest.raises(ModuleMissing, match="hasn't loaded redis-lock") as failure:
            Locks(server.redis).lock(KEY).acquire(5)
        assert failure.value.__cause__ is None and failure.value.__suppress_context__
    finally:
        server.stop()


def test_texts_have_no_token(server):
    locks = Locks(Redis(port=server.port), observer=Notes())
    lock = locks.lock(KEY, data="secret-data")
    with lock as grant:
        for text in map(repr, (lock, grant, grant._hold.options, locks)):
            assert grant.token not in text and "secret" not in text
        assert f"held fence={grant.fence}" in repr(grant)
        # An error of the server that quotes the command.
        with server.allowing("-lock.release") as settings:
            with pytest.raises(redis.exceptions.NoPermissionError) as failure:
                Locks(Redis(**settings)).adopt(KEY, grant.token, grant.fence).release()
            assert grant.token not in repr(failure.value)
    assert "released" in repr(grant)


def test_errors_are_those_of_redis_py_too():
    assert issubclass(redislock.NotAcquired, redis.exceptions.LockError)
    assert issubclass(redislock.LockLost, redis.exceptions.LockNotOwnedError)
    assert issubclass(redislock.Unavailable, redis.ConnectionError)
    assert issubclass(redislock.Unavailable, redis.TimeoutError)
    assert issubclass(redislock.ModuleMissing, redis.ResponseError)
    assert issubclass(redislock.NotHeld, RuntimeError)
    assert all(issubclass(getattr(redislock, name), redislock.RedisLockError)
               for name in redislock.__all__ if name[0].isupper() and name not in
               ("Grant", "Lock", "Locks", "Observer"))  # fmt: skip
