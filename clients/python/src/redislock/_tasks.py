"""The part of locks that is specific to tasks of an event loop: the counterpart of Threads."""

import asyncio
import inspect
import itertools
import secrets
import time
from collections import deque
from contextlib import nullcontext, suppress
from typing import (
    Any,
    Callable,
    Coroutine,
    Deque,
    Dict,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
)

from redis import exceptions

from ._call import Call
from ._errors import NoAnswer, Unavailable
from ._keeper import Keeper
from ._observer import tell
from ._options import Words

T = TypeVar("T")

# The time for which a connection that didn't reply stays open for the commands written behind.
LINGER_SECONDS = 10.0


class Gate:
    """An event of one event loop."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiters: "List[asyncio.Future[None]]" = []

    def open(self) -> None:
        self._is_open = True
        for waiter in self._waiters:
            _over(waiter)

    def close(self) -> None:
        self._is_open = False

    async def wait(self, seconds: float) -> bool:
        if not self._is_open:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._waiters.append(waiter)
            # At most an hour, because some loops take no delay of many years.
            timer = loop.call_later(min(max(0.0, seconds), 3600.0), _over, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.remove(waiter)
            if not self._is_open and seconds > 3600:
                return await self.wait(seconds - 3600)
        return self._is_open


def _over(waiter: "asyncio.Future[Any]", result: Any = None) -> None:
    if not waiter.done():
        waiter.set_result(result)


def _discard(opening: "asyncio.Future[Line]") -> None:
    """Cancel the opening of a connection, or close the connection if it is open already."""

    def close(opened: "asyncio.Future[Line]") -> None:
        if not opened.cancelled() and opened.exception() is None:
            opened.result().close()

    opening.cancel()
    opening.add_done_callback(close)


class Line:
    """A connection that all tasks share. Replies come in the order of the commands."""

    def __init__(self, raw: Any, address: Any, heard: Callable[[bytes], None]) -> None:
        self.address = address
        # The subscribed channels, if it is for messages.
        self.channels: Set[str] = set()
        self.is_usable = True
        self._raw = raw
        self._heard = heard
        self._pending: Deque["asyncio.Future[Any]"] = deque()
        self._out: List[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._reading = asyncio.ensure_future(self._read())

    async def exchange(self, commands: Sequence[Words], until: float, call: Call) -> List[Any]:
        futures = self._send(commands)
        timer = self._loop.call_later(
            max(0.0, until - time.monotonic()), self._give_up, futures[-1]
        )
        try:
            last = await futures[-1]
        finally:
            timer.cancel()
        if isinstance(last, NoAnswer):
            raise last
        replies = [future.result() for future in futures]
        for reply in replies:
            if isinstance(reply, exceptions.BusyLoadingError):
                break
            if isinstance(reply, exceptions.ConnectionError):
                raise reply
        return replies

    def _give_up(self, reply: "asyncio.Future[Any]", turns: int = 3) -> None:
        """End the wait for a reply after some turns of the loop, in which it may still be read."""
        if turns:
            self._loop.call_soon(self._give_up, reply, turns - 1)
        else:
            _over(reply, NoAnswer())

    def _send(self, commands: Sequence[Words]) -> "List[asyncio.Future[Any]]":
        futures = [self._loop.create_future() for _ in commands]
        if not self.is_usable and self._reading.done():
            for future in futures:
                future.set_result(exceptions.ConnectionError("the connection was lost"))
            return futures
        self._pending.extend(futures)
        # perf: One write for all commands of this turn of the loop.
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.extend(self._raw.pack_commands(commands))
        return futures

    def _flush(self) -> None:
        out, self._out = b"".join(self._out), []
        if self._raw._writer is not None:
            self._raw._writer.write(out)

    async def _read(self) -> None:
        lost: Exception = exceptions.ConnectionError("the connection was lost")
        try:
            while True:
                try:
                    reply = await self._raw.read_response(disable_decoding=True)
                except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
                    reply = error
                self._receive(reply)
        except Exception as error:
            lost = error
        finally:
            self.is_usable = False
            if not isinstance(lost, exceptions.ConnectionError):
                lost = exceptions.ConnectionError(str(lost))
            for future in self._pending:
                _over(future, lost)
            self._pending.clear()
            self._heard(b"")
            with suppress(Exception):
                await self._raw.disconnect(nowait=True)

    def _receive(self, reply: Any) -> None:
        _over(self._pending.popleft(), reply)

    def leave(self, commands: Sequence[Words]) -> None:
        """Write commands behind the unanswered ones. The connection stays for other tasks."""
        if commands:
            self._send(commands)

    def retire(self) -> None:
        """Take no more commands of new calls, and close soon."""
        if self.is_usable:
            self.is_usable = False
            self._loop.call_later(LINGER_SECONDS, self._reading.cancel)

    def close(self) -> None:
        self.is_usable = False
        self._reading.cancel()


class Listener(Line):
    """A connection for messages."""

    def _receive(self, reply: Any) -> None:
        kind = reply[0] if isinstance(reply, list) else None
        if kind in (b"message", b"smessage"):
            self._heard(reply[2])
        elif kind == b"sunsubscribe":
            # The slot has moved to another node.
            self.channels.discard(reply[1].decode())
            self._heard(b"")
        else:
            super()._receive(reply)


class OwnLine(Line):
    """A connection for one call, or for a session."""

    def leave(self, commands: Sequence[Words]) -> None:
        super().leave(commands)
        if commands:
            self.retire()
        else:
            self.close()


class TaskKeeper(Keeper):
    """A timer that looks after the grants."""

    _timer: Optional[asyncio.TimerHandle] = None

    def wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # At most an hour, because some loops take no delay of many years.
        left = min(max(0.0, self.look() - time.monotonic()), 3600.0)
        self._timer = asyncio.get_running_loop().call_later(left, self.wake) if self.held else None


class Tasks:
    blocks = False
    gate = Gate
    guard = nullcontext
    call = Call

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew in another event loop, to which no connection and no timer belongs."""
        self.keeper = TaskKeeper()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        # References to running tasks, because an event loop doesn't keep its tasks alive.
        self._running: Set["asyncio.Future[Any]"] = set()
        self._lines: Dict[Tuple[str, Any], Line] = {}
        self._opening: Dict[Tuple[str, Any], "asyncio.Future[Line]"] = {}
        self._name = secrets.token_hex(8)
        self._channels: Dict[int, str] = {}
        self._numbers = itertools.count()
        self._gates: Dict[bytes, Gate] = {}
        self._subscribing: Dict[str, "asyncio.Future[None]"] = {}

    def me(self) -> Any:
        return asyncio.current_task()

    def owner(self) -> Any:
        """Return the owner of a reentrant lock, which is the object itself."""
        return None

    def has_ended(self, owner: Any) -> bool:
        """Return False: a task may pass its lock on."""
        return False

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def start_from_finalizer(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.start(make()))

    def tell(self, on_lost: Callable[[Any], Any], lock: Any) -> None:
        work = tell(on_lost, lock)
        if inspect.iscoroutine(work):
            self.start(work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def done(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def abandon(self, raw: Any) -> None:
        await raw.disconnect(nowait=True)

    async def learn_nodes(self, cluster: Any) -> None:
        await cluster.initialize()

    def pool(self, cluster: Any, node: Any) -> Any:
        return node

    def socket_timeout(self, seconds: float) -> None:
        """Return None: the time limits are those of each command."""
        return None

    # --- connections ------------------------------------------------------------------------------

    async def take(
        self, servers: Any, key: Any, elsewhere: Any, call: Call, until: float, kind: str
    ) -> Line:
        """Return the connection that all tasks share, or the call's own one."""
        if self._loop is not asyncio.get_running_loop():
            self.forget()
            self._loop = asyncio.get_running_loop()
        if call.is_apart:
            if call.kept.link is None or elsewhere is not None:
                call.part(self)
                opened = await self._open_own(servers, key, elsewhere, until)
                if call.kept.link is None:
                    call.kept.link = opened
                else:
                    # Another call of the same session was faster.
                    opened.close()
            return call.kept.link  # type: ignore[no-any-return]
        address = servers.find(key, elsewhere)
        line = self._lines.get((kind, address))
        if line is not None and line.is_usable:
            return line
        shared = self._opening.get((kind, address))
        if shared is None:
            shared = asyncio.ensure_future(
                self._open(servers, key, elsewhere, Listener if kind == "messages" else Line)
            )
            self._opening[kind, address] = shared
            # Not with the limit of this task, because other tasks wait for the same connection.
            limit = asyncio.get_running_loop().call_later(servers.attempt_timeout, shared.cancel)
            shared.add_done_callback(lambda _: limit.cancel())
            shared.add_done_callback(lambda it: self._opened(kind, address, it))
        await asyncio.wait({shared}, timeout=max(0.0, until - time.monotonic()))
        if not shared.done() or shared.cancelled():
            raise NoAnswer
        return shared.result()

    async def _open_own(self, servers: Any, key: Any, elsewhere: Any, until: float) -> Line:
        opening = asyncio.ensure_future(self._open(servers, key, elsewhere, OwnLine))
        try:
            await asyncio.wait({opening}, timeout=max(0.0, until - time.monotonic()))
        except BaseException:
            _discard(opening)
            raise
        if not opening.done() or opening.cancelled():
            _discard(opening)
            raise NoAnswer
        return opening.result()

    async def _open(self, servers: Any, key: Any, elsewhere: Any, kind: Type[Line]) -> Line:
        raw, address = await servers.open(key, elsewhere)
        return kind(raw, address, self._hear)

    def _opened(self, kind: str, address: Any, opening: "asyncio.Future[Line]") -> None:
        if self._opening.get((kind, address)) is opening:
            del self._opening[kind, address]
        if not opening.cancelled() and opening.exception() is None:
            self._lines[kind, opening.result().address] = opening.result()

    def put_back(self, call: Call) -> None:
        """Close the call's own connection."""
        link, call.kept.link = call.kept.link, None
        if link is not None:
            link.close()

    def drop(self, address: Any) -> None:
        for kind in ("commands", "messages"):
            line = self._lines.pop((kind, address), None)
            if line is not None:
                line.retire()

    async def close(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    # --- messages ---------------------------------------------------------------------------------

    async def listen(self, commands: Any, key: Any, until: float) -> str:
        """Return a channel in the slot of a key, to which a connection listens."""
        channel = self._channel(commands.servers, key)
        line = self._lines.get(("messages", commands.servers.find(key)))
        if line is None or not line.is_usable or channel not in line.channels:
            subscribing = self._subscribing.get(channel)
            if subscribing is None:
                subscribing = asyncio.ensure_future(self._subscribe(commands, key, channel))
                self._subscribing[channel] = subscribing
                subscribing.add_done_callback(lambda _: self._subscribing.pop(channel, None))
                subscribing.add_done_callback(lambda it: it.cancelled() or it.exception())
            done, _ = await asyncio.wait({subscribing}, timeout=max(0.0, until - time.monotonic()))
            if not done:
                raise Unavailable("no answer to a subscription in time")
            subscribing.result()
        return channel

    async def _subscribe(self, commands: Any, key: Any, channel: str) -> None:
        verb = "SSUBSCRIBE" if commands.servers.is_cluster else "SUBSCRIBE"
        until = time.monotonic() + commands.command_timeout
        await commands.ask(key, [(verb, channel)], Call(b""), until, kind="messages")
        line = self._lines.get(("messages", commands.servers.find(key)))
        if line is not None:
            line.channels.add(channel)

    def _channel(self, servers: Any, key: Any) -> str:
        if not servers.is_cluster:
            return f"redis-lock:{self._name}"
        slot = servers.client.keyslot(key)
        if slot not in self._channels:
            tags = (f"{{{number}}}" for number in itertools.count())
            tag = next(tag for tag in tags if servers.client.keyslot(tag) == slot)
            self._channels[slot] = f"redis-lock:{self._name}:{tag}"
        return self._channels[slot]

    def bell(self) -> Tuple[bytes, Gate]:
        """Return a message, and the gate that it opens until ``silence``."""
        message, gate = b"%d" % next(self._numbers), Gate()
        self._gates[message] = gate
        return message, gate

    def silence(self, message: bytes) -> None:
        self._gates.pop(message, None)

    def _hear(self, message: bytes) -> None:
        """Open the gate of a message, or all gates if messages may have been missed."""
        for gate in [self._gates.get(message)] if message else list(self._gates.values()):
            if gate is not None:
                gate.open()
