"""Servers with the module. REDIS_LOCK_RIG names the program that starts them."""

import asyncio
import contextlib
import functools
import inspect
import os
import subprocess
import threading
import time

import pytest
from redis import ConnectionError, Redis

from redislock import Observer


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


async def done(result):
    """Return the result of a call for threads or for tasks."""
    return await result if inspect.isawaitable(result) else result


def in_thread(act, *args, **options):
    """Start a call in another thread. Return a function that gives its result or its error."""
    result = []

    def run():
        try:
            result.append((act(*args, **options), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def outcome():
        thread.join(20)
        assert result, "the call hasn't ended"
        value, error = result[0]
        if error is not None:
            raise error
        return value

    return outcome


class Notes(Observer):
    """Notes the events that it hears of."""

    def __init__(self):
        self.seen = []

    def waited(self, lock, seconds, outcome):
        self.seen.append(("waited", outcome))

    def granted(self, grant):
        self.seen.append(("granted", grant.fence))

    def lost(self, grant):
        self.seen.append(("lost", grant.fence))

    def unavailable(self, error):
        self.seen.append(("unavailable", str(error)))

    def count(self, event):
        return sum(it[0] == event for it in self.seen)


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


def free_port():
    return int(order("port")[0])


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

    def left(self, grant):
        """Return the lease at the server in seconds."""
        return self.redis.execute_command("LOCK.CHECK", grant.keys[0], grant.token) / 1000

    def connected(self):
        """Return how often clients have connected."""
        return self.redis.info("stats")["total_connections_received"]

    def other_holds(self, key):
        assert self.redis.execute_command("LOCK.ACQUIRE", key, "other", "PX", 600_000)

    def other_releases(self, key):
        assert self.redis.execute_command("LOCK.RELEASE", key, "other") == 1

    @contextlib.contextmanager
    def allowing(self, *rules):
        """Give the settings of a user with these rules."""
        rules = ("on", "nopass", "~*", "&*", "+@all", *rules)
        self.redis.execute_command("ACL", "SETUSER", "u", *rules)
        yield {"port": self.port, "username": "u", "password": ""}
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
def own_server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def sentinel(server):
    """Start a Sentinel of the server, as mymaster. Return its port."""
    sentinel = Server("sentinel", "mymaster", server.port)
    yield sentinel.port
    sentinel.stop()


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
