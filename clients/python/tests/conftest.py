"""Servers with the module. REDIS_LOCK_RIG names the program that starts them."""

import functools
import os
import subprocess
import time

import pytest
from redis import ConnectionError, Redis


def until(what, is_so, patience=20.0):
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"not in {patience} s: {what}"
        time.sleep(0.005)


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

    def waiters(self, key):
        info = self.redis.execute_command("LOCK.INFO", key)
        return 0 if info is None else dict(zip(info[::2], info[1::2]))[b"waiters"]

    def until_waiting(self, key, count=1):
        until(f"{count} wait for {key}", lambda: self.waiters(key) == count)

    def is_free(self, key):
        return self.redis.execute_command("LOCK.INFO", key) is None

    def other_holds(self, key):
        assert self.redis.execute_command("LOCK.ACQUIRE", key, "other", "PX", 600_000)

    def other_releases(self, key):
        assert self.redis.execute_command("LOCK.RELEASE", key, "other") == 1

    def freeze(self):
        order("freeze", self.port)

    def thaw(self):
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
    """Let the next commands of a verb be executed, and lose their replies and their connection."""

    def lose(kind, verb, count=1):
        exchange, left = kind.exchange, [None] * count

        async def lossy(link, commands, *args):
            replies = await exchange(link, commands, *args)
            if left and commands[0][0] == verb:
                left.pop()
                raise ConnectionError("the reply was lost")
            return replies

        monkeypatch.setattr(kind, "exchange", lossy)

    return lose
