"""The part of locks that is specific to tasks of an event loop: the counterpart of Threads."""

import asyncio
import inspect
import itertools
import secrets
import time
from contextlib import suppress
from typing import (
    Any,
    Callable,
    Coroutine,
    Dict,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ._commands import Call
from ._crowd import Crowds, TaskCrowd
from ._keeper import Keeper
from ._observer import tell
from ._options import Key, Words
from ._threads import IDLE_CONNECTIONS

T = TypeVar("T")

# The most connections to one server for the commands of waiters, and for those of holders.
MOST_CONNECTIONS = 16
# Some event loops take no delay of many years.
LONGEST_DELAY_SECONDS = 3600.0
# Older versions of redis-py require the name of a command.
_TAKES_NONE = "command_name=None" in str(inspect.signature(ConnectionPool.get_connection))
_NAME = () if _TAKES_NONE else ("_",)


class TaskKeeper(Keeper):
    """A timer that looks after the grants."""

    _timer: Optional[asyncio.TimerHandle] = None

    def wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = min(max(0.0, self.look() - time.monotonic()), LONGEST_DELAY_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(left, self.wake) if self.held else None


class Listener:
    """A connection to one server for the messages to waiters."""

    def __init__(self, wake: Callable[[bytes], None]) -> None:
        self._wake = wake
        self._connection: Any = None
        self._reading: "Optional[asyncio.Future[None]]" = None
        self._is_opening = asyncio.Lock()
        self._channels: Set[str] = set()
        # The reply to the latest subscription.
        self._reply: "Optional[asyncio.Future[None]]" = None

    def hears(self, channel: str) -> bool:
        return channel in self._channels

    async def subscribe(self, pool: Any, verb: str, channel: str) -> None:
        async with self._is_opening:
            if self.hears(channel):
                return
            if self._connection is None:
                self._connection = await pool.get_connection(*_NAME)
                self._reading = asyncio.ensure_future(self._read(pool, self._connection))
            self._reply = asyncio.get_running_loop().create_future()
            try:
                await self._connection.send_command(verb, channel)
                await self._reply
            except asyncio.CancelledError:
                # Without a reply in time the connection may be dead, so the next call opens one.
                self.close()
                raise

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._forget()

    def _forget(self) -> None:
        self._connection = None
        self._channels.clear()

    async def _read(self, pool: Any, connection: Any) -> None:
        try:
            while True:
                try:
                    self._receive(await connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    self._replied(error)
        except Exception as error:
            self._replied(exceptions.ConnectionError(str(error) or "the connection was lost"))
        finally:
            if self._connection is connection:
                self._forget()
            self._wake(b"")
            with suppress(Exception):
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    def _receive(self, reply: Any) -> None:
        kind = reply[0]
        if kind in (b"message", b"smessage"):
            self._wake(reply[2])
        elif kind == b"sunsubscribe":
            # The slot has moved to another node.
            self._channels.discard(reply[1].decode())
            self._wake(b"")
        else:
            self._channels.add(reply[1].decode())
            self._replied(None)

    def _replied(self, error: Optional[Exception]) -> None:
        if self._reply is None or self._reply.done():
            return
        if error is None:
            self._reply.set_result(None)
        else:
            self._reply.set_exception(error)


class Tasks:
    blocks = False
    pool_class = ConnectionPool

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked process, which has no event loop of the old one."""
        self._begin(None)

    def _begin(self, loop: Any) -> None:
        """Start in an event loop, to which no connection and no timer of an earlier one belongs."""
        self._loop = loop
        self.keeper = TaskKeeper()
        self.crowds = Crowds(TaskCrowd)
        # References to running tasks, because an event loop doesn't keep its tasks alive.
        self._running: Set["asyncio.Future[Any]"] = set()
        # A release never waits behind the commands of waiters.
        self._lanes: Dict[Tuple[Any, bool], asyncio.Semaphore] = {}
        self._listeners: Dict[Any, Listener] = {}
        self._learns: "Optional[asyncio.Future[Any]]" = None
        self._name = secrets.token_hex(8)
        self._channels: Dict[int, str] = {}
        self._numbers = itertools.count()
        self._bells: Dict[bytes, asyncio.Event] = {}

    def scope(self) -> Any:
        """Return what the pools belong to."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._begin(loop)
        return loop

    def me(self) -> Any:
        return asyncio.current_task()

    def lives(self, task: Any) -> bool:
        return not task.done()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # Nobody may be there to hear of its error.
        task.add_done_callback(lambda it: it.cancelled() or it.exception())
        return task

    def start_from_finalizer(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.start(make()))

    def tell(self, on_lost: Callable[[Any], Any], grant: Any) -> None:
        work = tell(on_lost, grant)
        if inspect.iscoroutine(work):
            self.start(work)

    async def sleep(self, seconds: float, stop: Any = None) -> None:
        await asyncio.sleep(min(max(0.0, seconds), LONGEST_DELAY_SECONDS))

    async def done(self, work: Any) -> Any:
        return await work

    def socket_timeout(self, seconds: float) -> None:
        """Return None, because each command has its own limit."""
        return None

    # --- redis-py's client ------------------------------------------------------------------------

    def no_retry(self) -> Any:
        return Retry(NoBackoff(), 0)

    async def learn_nodes(self, cluster: Any, until: float) -> None:
        """Let the client learn its nodes, once for all tasks, whatever time that takes."""
        if cluster.get_nodes():
            return
        if self._learns is None or self._learns.done():
            self._learns = self.start(cluster.initialize())
        await asyncio.wait([self._learns], timeout=max(0.0, until - time.monotonic()))
        if not self._learns.done():
            raise exceptions.TimeoutError("no reply in time")
        self._learns.result()

    def node_settings(self, cluster: Any, address: Any) -> Any:
        """Return a node of the client, whose settings are those of every node."""
        return cluster.get_node(*address) or next(iter(cluster.get_nodes()))

    # --- connections ------------------------------------------------------------------------------

    async def exchange(
        self, pool: Any, commands: Sequence[Words], until: float, call: Call, is_of_waiter: bool
    ) -> Any:
        """Send commands, and return the last one's reply. It may be an error.

        If the caller leaves first, what was sent goes on, and its connection stays usable.
        """
        left = until - time.monotonic()
        if left <= 0:
            raise exceptions.TimeoutError("no time left")
        wanted = asyncio.get_running_loop().create_future()
        exchange = self._exchange(pool, commands, call, wanted)
        if not commands[-1][0].endswith("WAIT"):
            # A blocking command would keep others from the connections of its lane.
            exchange = self._in_lane((pool, is_of_waiter), exchange)
        work, loop = self.start(exchange), asyncio.get_running_loop()
        ends = loop.call_later(max(left, pool.longest_seconds), work.cancel)
        work.add_done_callback(lambda _: ends.cancel())
        try:
            await asyncio.wait([work], timeout=left)
        finally:
            wanted.cancel()
        if not work.done() or work.cancelled():
            raise exceptions.TimeoutError("no reply in time")
        return work.result()

    async def _in_lane(self, name: Tuple[Any, bool], exchange: Coroutine[Any, Any, Any]) -> Any:
        try:
            async with self._lanes.setdefault(name, asyncio.Semaphore(MOST_CONNECTIONS)):
                return await exchange
        finally:
            exchange.close()

    async def _exchange(
        self,
        pool: Any,
        commands: Sequence[Words],
        call: Call,
        wanted: "asyncio.Future[None]",
    ) -> Any:
        connection = call.tie and call.tie.latest(pool)
        connection = connection or await pool.get_connection(*_NAME)
        is_clean = wanted.cancelled()
        try:
            if wanted.cancelled():
                raise asyncio.CancelledError
            call.unanswered += 1
            await connection.send_packed_command(connection.pack_commands(commands))
            reply = [await self._receive(connection) for _ in commands][-1]
            call.unanswered -= 1
            is_clean = True
            return reply
        except Exception:
            await self._close_unused(pool)
            raise
        finally:
            if call.tie:
                call.tie.keep(pool, connection, is_clean)
            else:
                await self._put_back(pool, connection, is_clean)

    async def _receive(self, connection: Any) -> Any:
        try:
            # The connection of a session must stay open if a reply is late.
            return await connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
            return error

    async def _close_unused(self, pool: Any) -> None:
        """Close them without a pause, in which another task would take one that is closing."""
        for connection in list(pool._available_connections):
            with suppress(Exception):
                await connection.disconnect(nowait=True)

    def put_back(self, pool: Any, connection: Any, is_clean: bool) -> None:
        self.start(self._put_back(pool, connection, is_clean))

    async def _put_back(self, pool: Any, connection: Any, is_clean: bool) -> None:
        """Return a connection to its pool, which keeps only some unused connections open."""
        with suppress(Exception):
            if not is_clean or len(pool._available_connections) >= IDLE_CONNECTIONS:
                await connection.disconnect(nowait=True)
        await pool.release(connection)

    async def close(self, pools: List[Any], seconds: float) -> None:
        """Close the connections. Before, wait for what goes on in the background."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for listener in self._listeners.values():
            listener.close()
        for pool in pools:
            await pool.disconnect()

    # --- messages ---------------------------------------------------------------------------------

    def bell(self) -> Tuple[bytes, asyncio.Event]:
        """Return a message, and the event that it sets until ``silence``."""
        message, event = b"%d" % next(self._numbers), asyncio.Event()
        self._bells[message] = event
        return message, event

    def silence(self, message: bytes) -> None:
        self._bells.pop(message, None)

    async def hear(self, servers: Any, key: Key, bell: asyncio.Event, until: float) -> None:
        """Wait until it is worthwhile to ask again: for the message, or until the time is over."""
        channel, address = self.channel(servers, key), await servers.address(key, until)
        listener = self._listeners.setdefault(address, Listener(self._ring))
        left = max(0.0, until - time.monotonic())
        if listener.hears(channel):
            timer = asyncio.get_running_loop().call_later(
                min(left, LONGEST_DELAY_SECONDS), bell.set
            )
            try:
                await bell.wait()
            finally:
                timer.cancel()
                bell.clear()
            return
        # A message may have been missed, so the caller asks again at once.
        verb = "SSUBSCRIBE" if servers.is_cluster else "SUBSCRIBE"
        pool = servers.pool(address)
        subscribing = listener.subscribe(pool, verb, channel)
        subscribes = self.start(asyncio.wait_for(subscribing, pool.longest_seconds))
        await asyncio.wait({subscribes}, timeout=left)
        # If the slot has moved, the next LOCK.QUEUE learns where it is.
        with suppress(exceptions.AskError):
            if subscribes.done():
                subscribes.result()

    def _ring(self, message: bytes) -> None:
        """Wake the waiter of a message, or all waiters if messages may have been missed."""
        for bell in [self._bells.get(message)] if message else list(self._bells.values()):
            if bell is not None:
                bell.set()

    def channel(self, servers: Any, key: Key) -> str:
        """Return the channel for messages about a key. In a cluster it is in the key's slot."""
        if not servers.is_cluster:
            return f"redis-lock:{self._name}"
        slot = servers.client.keyslot(key)
        if slot not in self._channels:
            tags = (f"{{{number}}}" for number in itertools.count())
            tag = next(tag for tag in tags if servers.client.keyslot(tag) == slot)
            self._channels[slot] = f"redis-lock:{self._name}:{tag}"
        return self._channels[slot]
