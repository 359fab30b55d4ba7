"""Arguments that are refused, and the texts and classes of errors."""

import pytest
import redis
from conftest import KEY
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

import redislock
from redislock import Locks, ModuleMissing
from redislock.asyncio import Locks as AsyncLocks

NAN, INF = float("nan"), float("inf")

WRONG_OPTIONS = {
    "lease": [0, -1, NAN, INF, 1e300, "5", None, True],
    "keep": [0, -1, NAN, "5"],
    "wait": [-1, NAN, INF, "5"],
    "margin": [-1, 30, NAN, "5"],
    "max_hold": [0, -1, NAN, INF],
    "at_least": [-1, NAN, "5"],
    "limit": [0, -1, 2**32, 1.5, True],
    "permits": [1],
    "data": ["d" * 1025, 5],
    "replicas": [0, 1001, 1.0],
    "on_lost": [5],
    "leese": [5],
}


def refuses(argument, call, *words, **options):
    with pytest.raises((ValueError, TypeError), match=argument):
        call(*words, **options)


def test_wrong_arguments_are_refused_by_their_names():
    locks = Locks(Redis(port=1))
    for name, values in WRONG_OPTIONS.items():
        for value in values:
            refuses(name, locks.lock, KEY, **{name: value})
    refuses("permits", locks.lock, KEY, limit=2, permits=3)
    for keys in ([], [5], ["a", b"a"], 5, None):
        refuses("keys", locks.lock, keys)
    for token in ("", "*", b"*", "t" * 257, 5):
        refuses("token", locks.adopt, KEY, token, 1)
    for timeout in (-1, NAN, INF, "5", True):
        refuses("timeout", locks.lock(KEY).acquire, timeout)
    for client in (AsyncRedis(), object(), None):
        refuses("client", Locks, client)
    refuses("client", AsyncLocks, Redis())
    refuses("observer", Locks, Redis(), observer=5)
    refuses("command_timeout", Locks, Redis(), command_timeout=0)
    refuses("reentrant", AsyncLocks(AsyncRedis()).lock, KEY, reentrant=True)


def test_a_wrong_extension_leaves_the_lease(server):
    with Locks(Redis(port=server.port)).lock(KEY) as grant:
        for lease in (0, -1, NAN, None):
            refuses("lease", grant.extend, lease)
        assert grant.left() > 25


def test_keys_may_be_any_iterable_and_stay(server):
    keys = ["a"]
    for given in (keys, iter(["a"])):
        lock = Locks(Redis(port=server.port)).lock(given)
        keys[:] = ["b"]
        with lock as grant:
            assert grant.keys == lock.keys == ("a",)
            assert not server.is_free("a") and server.is_free("b")


def test_a_server_without_the_module_is_named_so(start):
    with pytest.raises(ModuleMissing, match="hasn't loaded redis-lock") as failure:
        Locks(start("bare").redis).lock(KEY).acquire(5)
    assert failure.value.__cause__ is None and failure.value.__suppress_context__


def test_texts_have_no_token(server):
    locks = Locks(Redis(port=server.port))
    lock = locks.lock(KEY, data="secret-data")
    with lock as grant:
        for text in map(repr, (lock, grant, grant._hold.options, locks)):
            assert grant.token not in text and "secret" not in text
        assert f"held fence={grant.fence}" in repr(grant)
        # An error of the server that quotes the command.
        with server.allowing("-lock.release") as client:
            with pytest.raises(redis.exceptions.NoPermissionError) as failure:
                Locks(client).adopt(KEY, grant.token, grant.fence).release()
            assert grant.token not in repr(failure.value)
    assert "released" in repr(grant)


def test_errors_are_those_of_redis_py_too():
    for kind, base in (
        ("NotAcquired", redis.exceptions.LockError),
        ("LockLost", redis.exceptions.LockNotOwnedError),
        ("Unavailable", redis.ConnectionError),
        ("Unavailable", redis.TimeoutError),
        ("ModuleMissing", redis.ResponseError),
        ("NotHeld", RuntimeError),
    ):
        assert issubclass(getattr(redislock, kind), base)
    others = {"Grant", "Lock", "Locks", "Observer"}
    for name in {it for it in redislock.__all__ if it[0].isupper()} - others:
        assert issubclass(getattr(redislock, name), redislock.RedisLockError)
