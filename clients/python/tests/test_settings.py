"""The settings of redis-py's clients."""

import asyncio
import os
import socket
import threading
import time

import pytest
import redis
from conftest import KEY, done, until
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from redislock import Locks, Unavailable
from redislock.asyncio import Locks as AsyncLocks

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


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
async def test_a_wait_is_longer_than_every_limit_of_the_client(server, kind, settings):
    lock = kind.locks(server, settings).lock(KEY)
    with Redis(port=server.port, db=settings.get("db", 0)) as other:
        other.execute_command("LOCK.ACQUIRE", KEY, "other", "PX", 1300)
        began = time.monotonic()
        grant = await done(lock.acquire())
    assert time.monotonic() - began > 1 and 25 < grant.left() <= 29
    assert await done(lock.locked()) and await done(grant.owned())
    assert await done(grant.release()) and not await done(lock.locked())
    assert await done(kind.client.ping())


async def test_a_client_of_a_unix_socket(start, kind):
    path = f"/tmp/redislock-{os.getpid()}.sock"
    server = start("start", "--unixsocket", path)
    grant = await done(kind.locks(server, {"unix_socket_path": path}).lock(KEY).acquire())
    assert not server.is_free(KEY)
    assert await done(grant.release())
    assert server.is_free(KEY)


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
