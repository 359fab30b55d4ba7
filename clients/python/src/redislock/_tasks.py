"""The part of locks that is specific to tasks of an event loop: the counterpart of Threads."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import secrets
import time
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Callable, TypeVar

from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ._commands import Call
from ._crowd import Crowd
from ._keeper import Keeper
from ._observer import tell
from ._options import Key
from ._servers import NAME

T = TypeVar("T")

# The most connections to one server for the commands of waiters, and for those of holders.
MOST_CONNECTIONS = 16
# The longest time of an exchange whose caller left, on a connection that others could use.
LONGEST_EXCHANGE_SECONDS = 1.0
# Some event loops take no delay of many years.
LONGEST_DELAY_SECONDS = 3600.0


class TaskKeeper(Keeper):
    """A timer that looks after the grants."""

    _timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = min(max(0.0, self.look() - time.monotonic()), LONGEST_DELAY_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(left, self.wake) if self.held else None


class Listener:
    """A connection to one server for the messages to waiters. Its first failure ends it."""

    def __init__(self, io: Tasks, pool: Any, verb: str) -> None:
        self.failure: Exception | None = None
        self._io = io
        self._pool = pool
        self._verb = verb
        self._connection: Any = None
        # A future for each channel, which the reply to its subscription ends.
        self._channels: dict[str, asyncio.Future[None]] = {}
        self.reading = asyncio.ensure_future(self._read())

    async def subscribe(self, channel: str, seconds: float) -> asyncio.Future[None]:
        """Return a future that ends as soon as messages come, or never will."""
        if channel not in self._channels:
            loop = asyncio.get_running_loop()
            self._channels[channel] = subscribed = loop.create_future()
            # Without a reply the connection may be dead, however short the limits of waiters are.
            ends = loop.call_later(seconds, self.reading.cancel)
            subscribed.add_done_callback(lambda _: ends.cancel())
            if self._connection is not None:
                await self._connection.send_command(self._verb, channel)
        return self._channels[channel]

    async def _read(self) -> None:
        try:
            self._connection = await self._io.take(self._pool, math.inf, None)
            for channel in list(self._channels):
                await self._connection.send_command(self._verb, channel)
            while True:
                self._receive(await self._connection.read_response(disable_decoding=True))
        except Exception as error:
            self.failure = error
        finally:
            self.failure = self.failure or exceptions.TimeoutError("no reply in time")
            for subscribed in self._channels.values():
                subscribed.cancel()
            self._io.ring(b"")
            if self._connection is not None:
                await self._io.disconnect(self._connection)
                await self._pool.release(self._connection)

    def _receive(self, reply: Any) -> None:
        kind, channel = reply[0], reply[1].decode()
        if kind in (b"message", b"smessage"):
            self._io.ring(reply[2])
        elif kind == b"sunsubscribe":
            # The slot has moved to another node.
            self._channels.pop(channel, None)
            self._io.ring(b"")
        else:
            self._channels[channel].set_result(None)


class Tasks:
    blocks = False
    pool_class = ConnectionPool
    _loop: Any = None
    event = asyncio.Event
    me = staticmethod(asyncio.current_task)

    def __init__(self) -> None:
        self.forget()

    def begin(self) -> None:
        """Begin in an event loop, to which no connection and no timer of an earlier one belongs."""
        if self._loop is not asyncio.get_running_loop():
            self.forget()
            self._loop = asyncio.get_running_loop()

    def forget(self) -> None:
        """Start anew in a forked process, which has no event loop of the old one."""
        self._loop = None
        self.keeper = TaskKeeper()
        self.pools: dict[Any, Any] = {}
        self.crowds: weakref.WeakValueDictionary[Any, Crowd] = weakref.WeakValueDictionary()
        # References to running tasks, because an event loop doesn't keep its tasks alive.
        self._running: set[asyncio.Future[Any]] = set()
        # Exchanges that aren't sent any more, because their callers left.
        self._unwanted: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
        # A release never waits behind the commands of waiters.
        self._lanes: dict[tuple[Any, bool], asyncio.Semaphore] = {}
        self._listeners: dict[Any, Listener] = {}
        self._name = secrets.token_hex(8)
        self._channels: dict[int, str] = {}
        self._numbers = itertools.count()
        # The events of waiters by their messages.
        self._bells: weakref.WeakValueDictionary[bytes, asyncio.Event] = (
            weakref.WeakValueDictionary()
        )

    def lives(self, task: Any) -> bool:
        return not task.done()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
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

    async def pause(self, until: float, stop: Any, turn: asyncio.Event | None = None) -> None:
        """Wait until a time, or until it is the caller's turn."""
        turn = turn or asyncio.Event()
        left = min(max(0.0, until - time.monotonic()), LONGEST_DELAY_SECONDS)
        timer = asyncio.get_running_loop().call_later(left, turn.set)
        try:
            await turn.wait()
        finally:
            timer.cancel()
            turn.clear()

    async def done(self, work: Any) -> Any:
        return await work

    def settings(self, seconds: float) -> dict[str, Any]:
        """Return the settings of a pool. Each command has its own limit."""
        return {"socket_timeout": None, "retry": Retry(NoBackoff(), 0)}

    async def learn_nodes(self, cluster: Any, until: float) -> None:
        """Let the client learn its nodes, whatever time that takes. It does so only once."""
        learns = self.start(cluster.initialize())
        await asyncio.wait([learns], timeout=max(0.0, until - time.monotonic()))
        if not learns.done():
            raise exceptions.TimeoutError("no reply in time")
        learns.result()

    def node_settings(self, cluster: Any, address: Any) -> Any:
        """Return a node of the client, whose settings are those of every node."""
        return cluster.get_node(*address) or next(iter(cluster.get_nodes()))

    # --- connections ------------------------------------------------------------------------------

    async def bounded(
        self, make: Callable[[], Coroutine[Any, Any, T]], until: float, lane: Any, call: Call
    ) -> T:
        """Return the result of an exchange that ends in time.

        perf: If the caller leaves first, what was sent goes on, so that its connection stays open.
        500 tasks with limits of up to 300 ms opened 316 connections in 3 s, and then 33.
        """
        left = until - time.monotonic()
        if left <= 0:
            raise exceptions.TimeoutError("no time left")
        semaphore = self._lanes.setdefault(lane, asyncio.Semaphore(MOST_CONNECTIONS))

        async def in_lane() -> T:
            async with semaphore:
                return await make()

        work, loop = self.start(in_lane()), asyncio.get_running_loop()
        ends = loop.call_later(max(left, LONGEST_EXCHANGE_SECONDS), work.cancel)
        work.add_done_callback(lambda _: ends.cancel())
        try:
            await asyncio.wait([work], timeout=left)
        finally:
            if not call.is_sent:
                self._unwanted.add(work)
        if not work.done() or work.cancelled():
            raise exceptions.TimeoutError("no reply in time")
        return work.result()

    async def take(self, pool: Any, until: float, stop: Any) -> Any:
        try:
            connection = await pool.get_connection(*NAME)
        except BaseException:
            # The pool has a connection whose handshake was left.
            await self.close_unused(pool)
            raise
        if asyncio.current_task() in self._unwanted:
            await pool.release(connection)
            raise exceptions.TimeoutError("the caller left")
        return connection

    async def receive(self, connection: Any, until: float, stop: Any) -> Any:
        return await connection.read_response(disable_decoding=True)

    async def close_unused(self, pool: Any) -> None:
        """Close them without a pause, in which another task would take one that is closing."""
        for connection in list(pool._available_connections):
            await self.disconnect(connection)

    async def disconnect(self, connection: Any) -> None:
        with suppress(Exception):
            await connection.disconnect(nowait=True)

    async def close(self, seconds: float) -> None:
        """Close the connections. Before, wait for what goes on in the background."""
        for listener in self._listeners.values():
            listener.reading.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for pool in self.pools.values():
            await pool.disconnect()

    # --- messages ---------------------------------------------------------------------------------

    def bell(self) -> tuple[bytes, asyncio.Event]:
        """Return a message, and the event that it sets."""
        message, event = b"%d" % next(self._numbers), asyncio.Event()
        self._bells[message] = event
        return message, event

    async def hear(self, servers: Any, key: Key, bell: asyncio.Event, until: float) -> None:
        """Wait until it is worthwhile to ask again: for the message, or until the time is over."""
        pool = servers.pool(await servers.address(key, until))
        listener = self._listeners.get(pool)
        if listener is None or listener.failure is not None:
            verb = "SSUBSCRIBE" if servers.is_cluster else "SUBSCRIBE"
            listener = self._listeners[pool] = Listener(self, pool, verb)
        subscribed = await listener.subscribe(
            self.channel(servers, key), servers.attempt_seconds
        )
        if subscribed.done():
            await self.pause(until, None, bell)
            return
        # A message may have been missed, so the caller asks again at once.
        await asyncio.wait([subscribed], timeout=max(0.0, until - time.monotonic()))
        # If the slot has moved, the next LOCK.QUEUE learns where it is.
        if listener.failure is not None and not isinstance(listener.failure, exceptions.AskError):
            raise listener.failure

    def ring(self, message: bytes) -> None:
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
