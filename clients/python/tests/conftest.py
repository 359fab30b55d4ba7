"""A server with the module. REDIS_SERVER and REDIS_LOCK_MODULE name the two."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import pytest
from redis import ConnectionError, Redis


def until(what, is_so, patience=20.0):
    deadline = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < deadline, f"not in {patience} s: {what}"
        time.sleep(0.005)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    def __init__(self, folder, *options):
        module = os.path.abspath(os.environ["REDIS_LOCK_MODULE"])
        words = [
            os.environ["REDIS_SERVER"],
            "--bind", "127.0.0.1", "--save", "", "--dir", str(folder),
            "--logfile", "server.log", "--loadmodule", module,
        ]  # fmt: skip
        # Another process may take the chosen port before the server does.
        for _ in range(5):
            self.port = free_port()
            self.process = subprocess.Popen([*words, "--port", str(self.port), *options])
            self.redis = Redis(port=self.port, protocol=2)
            until("the server answers", lambda: self.answers() or self.process.poll() is not None)
            if self.process.poll() is None:
                return
        raise RuntimeError("the server could not be started")

    def answers(self):
        with contextlib.suppress(Exception):
            return self.redis.info("server")["process_id"] == self.process.pid

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

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def server(shared_server):
    yield shared_server
    shared_server.redis.flushall()


@pytest.fixture
def own_server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def sentinel_of(tmp_path):
    """Start a Sentinel of a server, as mymaster. Return its port."""
    processes = []

    def start(server):
        port = free_port()
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"sentinel monitor mymaster 127.0.0.1 {server.port} 1\n"
            "sentinel down-after-milliseconds mymaster 500\n"
            "sentinel failover-timeout mymaster 2000\n"
        )
        words = [os.environ["REDIS_SERVER"], str(config), "--sentinel", "--port", str(port)]
        processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        client = Redis(port=port)

        def answers():
            with contextlib.suppress(Exception):
                return client.ping()

        until("Sentinel answers", answers)
        return port

    yield start
    for process in processes:
        process.kill()
        process.wait()


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
