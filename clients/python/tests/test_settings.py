"""The settings of redis-py's clients."""

import asyncio
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from conftest import Server, done, until
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from redislock import Locks, Unavailable
from redislock.asyncio import Locks as AsyncLocks

KEY = "k"

SETTINGS = {
    "defaults": {},
    "a pool of one connection": {"max_connections": 1},
    "decoded replies": {"decode_responses": True},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "a short time limit": {"socket_timeout": 1},
    "health checks": {"health_check_interval": 1},
    "retries": {"retry_on_error": [redis.ConnectionError]},
    "another database": {"db": 3},
    "a name": {"client_name": "shop"},
}


@pytest.mark.parametrize("kind", [Redis, AsyncRedis])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
async def test_a_wait_is_longer_than_every_limit_of_the_client(server, settings, kind):
    client = kind(port=server.port, **settings)
    locks = (Locks if kind is Redis else AsyncLocks)(client)
    lock = locks.lock(KEY)
    with Redis(port=server.port, db=settings.get("db", 0)) as other:
        other.execute_command("LOCK.ACQUIRE", KEY, "other", "PX", 60_000)
        with ThreadPoolExecutor() as threads:
            # The server needs no help of the event loop, which the wait of a thread blocks.
            threads.submit(lambda: (time.sleep(1.3), other.execute_command("DEL", KEY)))
            began = time.monotonic()
            grant = await done(lock.acquire())
    assert time.monotonic() - began > 1 and 25 < grant.left() <= 29
    assert await done(lock.locked()) and await done(grant.owned())
    assert await done(grant.release()) and not await done(lock.locked())
    assert await done(client.ping())
    await done(locks.close() if kind is Redis else locks.aclose())
    await done(client.close() if kind is Redis else client.aclose())


@pytest.mark.parametrize("kind", [Sentinel, AsyncSentinel])
async def test_a_new_connection_asks_the_sentinel_for_the_primary(server, sentinel, kind):
    of_sentinel, newer = Redis(port=sentinel), Server()
    try:
        client = kind([("127.0.0.1", sentinel)]).master_for("mymaster")
        locks = (Locks if kind is Sentinel else AsyncLocks)(client, command_timeout=5)
        lock = locks.lock(KEY)
        assert await done((await done(lock.acquire())).release())
        of_sentinel.execute_command("SENTINEL", "REMOVE", "mymaster")
        of_sentinel.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", newer.port, 1)
        server.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        grant = await done(lock.acquire())
        assert not newer.is_free(KEY) and server.is_free(KEY)
        assert await done(grant.release())
        await done(locks.close() if kind is Sentinel else locks.aclose())
        await done(client.close() if kind is Sentinel else client.aclose())
    finally:
        newer.stop()


@pytest.mark.parametrize("kind", [Redis, AsyncRedis])
async def test_a_client_of_a_unix_socket(kind):
    path = f"/tmp/redislock-{os.getpid()}.sock"
    server = Server("start", "--unixsocket", path)
    try:
        client = kind(unix_socket_path=path)
        locks = (Locks if kind is Redis else AsyncLocks)(client)
        grant = await done(locks.lock(KEY).acquire())
        assert not server.is_free(KEY)
        assert await done(grant.release())
        assert server.is_free(KEY)
        await done(client.close() if kind is Redis else client.aclose())
    finally:
        server.stop()


def test_a_client_names_its_server_in_any_way(server):
    for pool in (
        redis.ConnectionPool(port=server.port),
        redis.ConnectionPool(host="localhost", port=str(server.port)),
        redis.ConnectionPool.from_url(f"redis://127.0.0.1:{server.port}/1"),
    ):
        with Locks(Redis(connection_pool=pool)).lock(KEY):
            pass
    for pool in (redis.ConnectionPool.from_url("redis://localhost/0"), redis.ConnectionPool()):
        assert Locks(Redis(connection_pool=pool))._commands.servers.name(None) == "localhost:6379"


def test_many_grants_leave_little_behind(server):
    locks = Locks(Redis(port=server.port))
    lock, connected = locks.lock(KEY), server.connected()
    for _ in range(500):
        with lock:
            pass
    assert not locks._io.keeper.held and not lock._entered
    assert server.connected() - connected < 5


def test_a_host_name_that_hangs_doesnt_hold_up_the_limit(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: asked.wait(20))
    began = time.monotonic()
    with pytest.raises(Unavailable, match="nowhere.example:6379: no connection in time"):
        Locks(Redis(host="nowhere.example")).lock(KEY).acquire(0.3)
    assert time.monotonic() - began < 4
    asked.set()


def test_one_event_loop_after_another(server):
    locks = AsyncLocks(AsyncRedis(port=server.port))

    async def once():
        async with locks.lock(KEY, lease=1) as grant:
            # The timers and subscriptions of another loop are of no use.
            assert await locks.lock(KEY).acquire(1.2) is None
            assert await grant.owned() and not grant.lost
            return grant.fence

    assert asyncio.run(once()) < asyncio.run(once())
    until("the refused wait is forgotten", lambda: server.is_free(KEY))
