"""Servers with the module, and the library for threads and for tasks.

REDIS_LOCK_RIG names the program that starts servers.
"""

import asyncio
import contextlib
import functools
import inspect
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import ConnectionError, Redis
from redis.asyncio import Redis as AsyncRedis

from redislock import Locks, Observer
from redislock.asyncio import Locks as AsyncLocks

KEY = "k"


def until(what, is_so, patience=20.0):
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"not in {patience} s: {what}"
        time.sleep(0.005)


async def until_task(what, is_so, patience=20.0):
    """Wait like ``until``, and let other tasks run meanwhile."""
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"not in {patience} s: {what}"
        await asyncio.sleep(0.005)


async def elapse(seconds):
    end = time.monotonic() + seconds
    await until_task("the time has passed", lambda: time.monotonic() > end)


async def done(result):
    """Return the result of a call for threads or for tasks."""
    return await result if inspect.isawaitable(result) else result


def in_thread(act, *args, **options):
    """Start a call in another thread. Return a function that gives its result or its error."""
    threads = ThreadPoolExecutor(1)
    future = threads.submit(act, *args, **options)
    threads.shutdown(wait=False)
    return functools.partial(future.result, 20)


class Notes(Observer):
    """Notes the fences of losses, and the outages."""

    def __init__(self):
        self.losses, self.outages = [], []

    def lost(self, grant):
        self.losses.append(grant.fence)

    def unavailable(self, error):
        self.outages.append(error)


@functools.cache
def rig():
    """Start the program that starts servers, once. They end with this process."""
    program = [os.environ["REDIS_LOCK_RIG"], "serve"]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def order(*words):
    """Send an order of tests/rig/src/main.rs. Return the words of its reply."""
    print(*words, file=rig().stdin, flush=True)
    status, *reply = rig().stdout.readline().split() or ["nothing"]
    assert status == "ok", f"{words}: {status}"
    return reply


class Server:
    def __init__(self, *words):
        port, *self.more = order(*words or ["start"])
        self.port = int(port)
        self.redis = Redis(port=self.port, protocol=2)

    def info(self, key):
        info = self.redis.execute_command("LOCK.INFO", key)
        return {} if info is None else dict(zip(info[::2], info[1::2]))

    def waiters(self, key):
        return self.info(key).get(b"waiters", 0)

    def until_waiting(self, key, count=1):
        until(f"{count} wait for {key}", lambda: self.waiters(key) == count)

    def is_free(self, key):
        return not self.info(key)

    def left(self, key, token):
        """Return the lease at the server in seconds."""
        return self.redis.execute_command("LOCK.CHECK", key, token) / 1000

    def connected(self):
        """Return how often clients have connected."""
        return self.redis.info("stats")["total_connections_received"]

    def other_holds(self, key):
        assert self.redis.execute_command("LOCK.ACQUIRE", key, "other", "PX", 600_000)

    def other_releases(self, key):
        assert self.redis.execute_command("LOCK.RELEASE", key, "other") == 1

    @contextlib.contextmanager
    def allowing(self, *rules):
        """Give a client of a user with these rules."""
        rules = ("on", "nopass", "~*", "&*", "+@all", *rules)
        self.redis.execute_command("ACL", "SETUSER", "u", *rules)
        yield Redis(port=self.port, username="u", password="")
        self.redis.execute_command("ACL", "DELUSER", "u")

    @contextlib.contextmanager
    def standing_still(self):
        order("freeze", self.port)
        try:
            yield
        finally:
            order("thaw", self.port)

    def stop(self):
        order("end", self.port)


@pytest.fixture(scope="session")
def shared_server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server):
    yield shared_server
    shared_server.redis.flushall()


@pytest.fixture
def start():
    """Start servers, which end after the test."""
    servers = []

    def started(*words):
        servers.append(Server(*words))
        return servers[-1]

    yield started
    for server in servers:
        server.stop()


class Kind:
    """The library for threads, or that for tasks."""

    def __init__(self, name):
        self.is_tasks = name == "tasks"
        self.Locks, self.Redis = (AsyncLocks, AsyncRedis) if self.is_tasks else (Locks, Redis)
        self.threads = ThreadPoolExecutor(40)
        self.closes = []

    def locks(self, server, settings={}, **options):
        """Make locks, which are closed after the test."""
        self.client = self.Redis(**{"port": server.port, **settings})
        # Long, because the machine may be busy.
        locks = self.Locks(self.client, **{"command_timeout": 10, "observer": Notes(), **options})
        self.closes += [it.aclose if self.is_tasks else it.close for it in (locks, self.client)]
        return locks

    def begin(self, call, *args):
        """Begin a call in a thread or a task of its own."""
        if self.is_tasks:
            return asyncio.ensure_future(call(*args))
        return asyncio.get_running_loop().run_in_executor(self.threads, call, *args)


@pytest.fixture(params=["threads", "tasks"])
def kind_name(request):
    return request.param


@pytest.fixture
async def kind(kind_name):
    kind = Kind(kind_name)
    yield kind
    for close in kind.closes:
        await done(close())


def in_use(locks):
    """Return how many connections are out of their pools, except those for messages."""
    listeners = [it._connection for it in getattr(locks._io, "_listeners", {}).values()]
    return sum(
        connection not in listeners
        for pool in locks._io.pools.values()
        for connection in pool._in_use_connections
    )


@pytest.fixture
async def locks(kind, server):
    """Make locks, after whose test the key is free, and no connection is in use."""
    locks = kind.locks(server)
    yield locks
    await until_task("the key is free", lambda: server.is_free(KEY))
    await until_task("no connection is in use", lambda: in_use(locks) == 0)


@pytest.fixture
def lose_replies(monkeypatch):
    """Lose the replies to the next commands of a verb, or also the commands, with the connection.

    The function returns the words of the lost commands.
    """

    def lose(commands, verb, count=1, arrive=True):
        exchange, lost = commands.exchange, []

        async def lossy(pool, sent, until, call, *args):
            if sent[0][0] != verb or len(lost) == count:
                return await exchange(pool, sent, until, call, *args)
            lost.append(sent[0])
            if arrive:
                await exchange(pool, sent, until, call, *args)
            call.unanswered += 1
            raise ConnectionError("the reply was lost")

        monkeypatch.setattr(commands, "exchange", lossy)
        return lost

    return lose
