"""The part of locks that is specific to threads. Its coroutines block the calling thread."""

import inspect
import math
import queue
import selectors
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Callable, Coroutine, List, Optional, Sequence, TypeVar

from redis import ConnectionPool, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from ._commands import Call
from ._crowd import LOOK_SECONDS, Crowds, ThreadCrowd
from ._errors import Cancelled, is_late
from ._keeper import Keeper
from ._observer import LOG, tell
from ._options import Words

T = TypeVar("T")

# The most unused connections to one server that stay open.
IDLE_CONNECTIONS = 32
# It needs no file descriptor, except where there is nothing better.
_Selector: Any = getattr(selectors, "PollSelector", selectors.DefaultSelector)
# Older versions of redis-py require the name of a command.
_TAKES_NONE = "command_name=None" in str(inspect.signature(ConnectionPool.get_connection))
_NAME = () if _TAKES_NONE else ("_",)


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread. It must never wait for an event loop."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop")


def in_thread(act: Callable[..., Any], *args: Any) -> None:
    threading.Thread(target=act, args=args, name="redislock", daemon=True).start()


class ThreadKeeper(Keeper):
    """A thread that looks after the grants, and starts work in other threads."""

    def __init__(self) -> None:
        super().__init__()
        # SimpleQueue, because a finalizer may put work into it at any moment.
        self._work: "queue.SimpleQueue[Optional[Callable[[], Any]]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def start(self, work: Optional[Callable[[], Any]] = None) -> None:
        self._work.put(work)
        # A thread that couldn't be started is tried again.
        if self._thread is None or not self._thread.is_alive():
            self._thread = thread = threading.Thread(
                target=self._run, name="redislock", daemon=True
            )
            thread.start()

    wake = start

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            with suppress(queue.Empty):
                work = self._work.get(timeout=max(0.0, min(self.look() - time.monotonic(), 10.0)))
                if work is not None:
                    self._start_work(work)
                continue
            if not self.held:
                # The next grant wakes the keeper, because no look is to come.
                self._looks_at = math.inf
                self._thread = None
                if not self._work.empty() or self.held:
                    self.start()

    def _start_work(self, work: Callable[[], Any]) -> None:
        try:
            in_thread(work)
        except RuntimeError:
            # No more threads. This thread must go on to look after the grants.
            LOG.exception("a lock that was collected ends with its lease")


class Threads:
    # A thread may wait in a blocking command.
    blocks = True
    pool_class = ConnectionPool

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked process, which has no thread of the old one."""
        self.keeper = ThreadKeeper()
        self.crowds = Crowds(ThreadCrowd)

    def scope(self) -> Any:
        """Return what the pools belong to."""
        return None

    def me(self) -> Any:
        return threading.current_thread()

    def lives(self, thread: Any) -> bool:
        return bool(thread.is_alive())

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work in the background. Raise RuntimeError if no thread can be started."""
        try:
            in_thread(run, work)
        except BaseException:
            work.close()
            raise

    def start_from_finalizer(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        # At the end of the interpreter a thread would never start.
        if not sys.is_finalizing():
            self.keeper.start(lambda: run(make()))

    def tell(self, on_lost: Callable[[Any], Any], grant: Any) -> None:
        try:
            in_thread(on_lost, grant)
        except RuntimeError:
            # No more threads, but the program must hear of the loss.
            tell(on_lost, grant)

    async def sleep(self, seconds: float, stop: Optional[threading.Event] = None) -> None:
        if stop is None:
            time.sleep(max(0.0, seconds))
        elif stop.wait(max(0.0, min(seconds, threading.TIMEOUT_MAX))):
            raise Cancelled("the cancel event is set")

    async def done(self, result: T) -> T:
        """Return the result of a call of redis-py. In redis.asyncio it is awaited."""
        return result

    def socket_timeout(self, seconds: float) -> float:
        return seconds

    # --- redis-py's client ------------------------------------------------------------------------

    def no_retry(self) -> Any:
        return Retry(NoBackoff(), 0)

    async def learn_nodes(self, cluster: Any, until: float) -> None:
        if not cluster.get_nodes():
            cluster.nodes_manager.initialize()

    def node_settings(self, cluster: Any, address: Any) -> Any:
        """Return a pool of the client, whose settings are those of every node."""
        node = cluster.get_node(*address) or next(iter(cluster.get_nodes()))
        return cluster.get_redis_connection(node).connection_pool

    # --- connections ------------------------------------------------------------------------------

    async def exchange(
        self, pool: Any, commands: Sequence[Words], until: float, call: Call, is_of_waiter: bool
    ) -> Any:
        """Send commands, and return the last one's reply. It may be an error."""
        began = time.monotonic()
        connection = call.tie and call.tie.latest(pool)
        connection = connection or self._take(pool, until, call.stop)
        is_clean = False
        call.unanswered += 1
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            reply = [self._receive(connection, until, call.stop) for _ in commands][-1]
            call.unanswered -= 1
            is_clean = True
            return reply
        except Exception as error:
            # A connection isn't dead because a short limit is over.
            if not is_late(error) or time.monotonic() - began > 0.9 * pool.longest_seconds:
                pool.disconnect(inuse_connections=False)
            raise
        finally:
            if call.tie:
                call.tie.keep(pool, connection, is_clean)
            else:
                self.put_back(pool, connection, is_clean)

    def _take(self, pool: Any, until: float, stop: Optional[threading.Event]) -> Any:
        if until <= time.monotonic():
            raise exceptions.TimeoutError("no time left")
        if _is_ready(pool):
            return pool.get_connection(*_NAME)
        return self._connect(pool, until, stop)

    def _connect(self, pool: Any, until: float, stop: Optional[threading.Event]) -> Any:
        """Connect in another thread, because DNS, Sentinels and a handshake have no common limit.

        A connection that comes too late goes to the pool.
        """
        opened: "Future[Any]" = Future()

        def work() -> None:
            try:
                connection = pool.get_connection(*_NAME)
            except BaseException as error:
                if opened.set_running_or_notify_cancel():
                    opened.set_exception(error)
            else:
                if opened.set_running_or_notify_cancel():
                    opened.set_result(connection)
                else:
                    self.put_back(pool, connection, True)

        in_thread(work)
        try:
            self._wait(lambda seconds: wait([opened], seconds).done, until, stop)
        except BaseException as error:
            if opened.cancel():
                raise
            if not isinstance(error, Exception):
                # An interrupt as the connection opened.
                if opened.exception() is None:
                    self.put_back(pool, opened.result(), True)
                raise
        return opened.result()

    def _receive(self, connection: Any, until: float, stop: Optional[threading.Event]) -> Any:
        self._wait(connection.can_read, until, stop)
        try:
            # The connection of a session must stay open if a reply is late.
            return connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
            return error

    def _wait(
        self, is_done: Callable[[float], Any], until: float, stop: Optional[threading.Event]
    ) -> None:
        """Wait until something is done. Raise an error at the end of the time, or if cancelled."""
        longest = 60.0 if stop is None else LOOK_SECONDS
        while not is_done(max(0.0, min(until - time.monotonic(), longest))):
            if stop is not None and stop.is_set():
                raise Cancelled("the cancel event is set")
            if time.monotonic() >= until:
                raise exceptions.TimeoutError("no reply in time")

    def put_back(self, pool: Any, connection: Any, is_clean: bool) -> None:
        """Return a connection to its pool, which keeps only some unused connections open."""
        with suppress(Exception):
            if not is_clean or len(pool._available_connections) >= IDLE_CONNECTIONS:
                connection.disconnect()
        pool.release(connection)

    async def close(self, pools: List[Any], seconds: float) -> None:
        for pool in pools:
            pool.disconnect(inuse_connections=False)


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
