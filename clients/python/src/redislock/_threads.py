"""The part of locks that is specific to threads. Its coroutines block the calling thread."""

from __future__ import annotations

import queue
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Callable, TypeVar

from redis import ConnectionPool, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._commands import Call
from ._crowd import Crowd
from ._errors import Cancelled
from ._keeper import Keeper
from ._observer import tell
from ._servers import NAME

T = TypeVar("T")

# The time between two looks at an event that cancels a wait.
LOOK_SECONDS = 0.1
# The longest time between two looks of the keeper, and its life without grants.
IDLE_SECONDS = 10.0
# It needs no file descriptor, except where there is nothing better.
_Selector: Any = getattr(selectors, "PollSelector", selectors.DefaultSelector)


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread. It must never wait for an event loop."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop")


def in_thread(act: Callable[..., Any], *args: Any) -> None:
    """Do something in another thread, or in this one if no more threads can be started."""
    try:
        threading.Thread(target=act, args=args, name="redislock", daemon=True).start()
    except RuntimeError:
        act(*args)


class ThreadKeeper(Keeper):
    """A thread that looks after the grants, and starts work in other threads."""

    def __init__(self) -> None:
        super().__init__()
        # SimpleQueue, because a finalizer may put work into it at any moment.
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def wake(self, work: Callable[[], Any] | None = None) -> None:
        self._work.put(work)
        # A thread that couldn't be started is tried again.
        if self._thread is None or not self._thread.is_alive():
            self._thread = thread = threading.Thread(
                target=self._run, name="redislock", daemon=True
            )
            thread.start()

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            with suppress(queue.Empty):
                left = self.look() - time.monotonic()
                work = self._work.get(timeout=max(0.0, min(left, IDLE_SECONDS)))
                if work is not None:
                    in_thread(work)
                continue
            if not self.held:
                # The next grant wakes the keeper, because no look is to come.
                self._looks_at = float("inf")
                self._thread = None
                if not self._work.empty() or self.held:
                    self.wake()


class Threads:
    # A thread may wait in a blocking command.
    blocks = True
    pool_class = ConnectionPool
    event = threading.Event
    me = staticmethod(threading.current_thread)

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked process, which has no thread of the old one."""
        self.keeper = ThreadKeeper()
        self.pools: dict[Any, Any] = {}
        self.local = threading.local()
        self._takes = threading.Lock()
        self.crowds: weakref.WeakValueDictionary[Any, Crowd] = weakref.WeakValueDictionary()

    def begin(self) -> None:
        """Do nothing. Tasks begin anew in another event loop."""

    def lives(self, thread: Any) -> bool:
        return bool(thread.is_alive())

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work in the background."""
        in_thread(run, work)

    def start_from_finalizer(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        # At the end of the interpreter a thread would never start.
        if not sys.is_finalizing():
            self.keeper.wake(lambda: run(make()))

    def tell(self, on_lost: Callable[[Any], Any], grant: Any) -> None:
        in_thread(tell, on_lost, grant)

    async def pause(
        self, until: float, stop: threading.Event | None, turn: threading.Event | None = None
    ) -> None:
        """Wait until a time, or until it is the caller's turn."""
        self._wait((turn or threading.Event()).wait, until, stop)

    async def done(self, result: T) -> T:
        """Return the result of a call of redis-py. In redis.asyncio it is awaited."""
        return result

    def settings(self, seconds: float) -> dict[str, Any]:
        """Return the settings of a pool whose connections have this time for each step."""
        return {"socket_timeout": seconds, "retry": Retry(NoBackoff(), 0)}

    def node_settings(self, cluster: Any, address: Any) -> Any:
        """Return a pool of the client, whose settings are those of every node."""
        node = cluster.get_node(*address) or next(iter(cluster.get_nodes()))
        return cluster.get_redis_connection(node).connection_pool

    # --- connections ------------------------------------------------------------------------------

    async def bounded(
        self, make: Callable[[], Coroutine[Any, Any, T]], until: float, lane: Any, call: Call
    ) -> T:
        """Return the result of steps, each of which has the limit itself."""
        return await make()

    async def take(self, pool: Any, until: float, stop: threading.Event | None) -> Any:
        if until <= time.monotonic():
            raise exceptions.TimeoutError("no time left")
        while True:
            # If another thread took it in between, the pool would connect, and that has no limit.
            with self._takes:
                if _is_ready(pool):
                    return pool.get_connection(*NAME)
            self._open(pool, until, stop)

    def _open(self, pool: Any, until: float, stop: threading.Event | None) -> None:
        """Connect in another thread, because DNS, Sentinels and a handshake have no common limit.

        The connection goes to the pool, whether it comes in time or not.
        """
        failures: list[Exception] = []
        is_over = threading.Event()

        def work() -> None:
            try:
                pool.release(pool.get_connection(*NAME))
            except Exception as error:
                failures.append(error)
            is_over.set()

        in_thread(work)
        if not self._wait(is_over.wait, until, stop):
            raise exceptions.TimeoutError("no connection in time")
        if failures:
            raise failures[0]

    async def receive(self, connection: Any, until: float, stop: threading.Event | None) -> Any:
        if not self._wait(connection.can_read, until, stop):
            raise exceptions.TimeoutError("no reply in time")
        return connection.read_response(disable_decoding=True)

    def _wait(
        self, is_done: Callable[[float], Any], until: float, stop: threading.Event | None
    ) -> bool:
        """Wait until something is done. Return False at the end of the time."""
        longest = 60.0 if stop is None else LOOK_SECONDS
        while not is_done(max(0.0, min(until - time.monotonic(), longest))):
            if stop is not None and stop.is_set():
                raise Cancelled("the cancel event is set")
            if time.monotonic() >= until:
                return False
        return True

    async def close_unused(self, pool: Any) -> None:
        pool.disconnect(inuse_connections=False)

    async def disconnect(self, connection: Any) -> None:
        with suppress(Exception):
            connection.disconnect()

    async def close(self, seconds: float) -> None:
        for pool in list(self.pools.values()):
            await self.close_unused(pool)


def _is_ready(pool: Any) -> bool:
    """Return True if the next unused connection is open, so that the pool needn't connect."""
    try:
        with _Selector() as selector:
            selector.register(pool._available_connections[-1]._sock, selectors.EVENT_READ)
            # The end of the connection can be read, and what nobody asked for.
            return not selector.select(0)
    except (IndexError, OSError, ValueError):
        # Another thread took it, or it is closed.
        return False
