"""Commands, each sent to the server of its key, and sent again after an outage."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Callable, TypeVar

from redis import exceptions
from redis.exceptions import AskError, MovedError

from ._errors import Unavailable, final, is_late, is_outage
from ._observer import Observer, tell
from ._options import Key, Words
from ._servers import Address, Servers

T = TypeVar("T")

# The most unused connections to one server that stay open.
IDLE_CONNECTIONS = 32
# The most redirections of one command in a cluster.
REDIRECTS = 8
# The pause after the first failure, and the longest one.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0


class Call:
    """The commands of one call of the program."""

    def __init__(self, token: bytes = b"", stop: Any = None, waits: bool = False) -> None:
        self.token = token
        # True if it waits for a lock. The commands of holders never wait behind those of waiters.
        self.waits = waits
        # An event that ends the call, if the program gave one.
        self.stop = stop
        # True if the latest command may have reached its server.
        self.is_sent = False
        # The number of commands that got no reply, and may still arrive.
        self.unanswered = 0
        # The node of a cluster that failed, so that another one is asked next.
        self.failed: Address | None = None
        # True if the next command ties a session to its connection, which is lent to the grant.
        self.ties = False
        self.lent: tuple[Any, Any] | None = None


def pauses() -> Iterator[float]:
    """Yield the pause before each next try."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Commands:
    """Sends commands for the locks of one client."""

    def __init__(self, client: Any, io: Any, command_timeout: float, observer: Observer) -> None:
        self.io = io
        self.command_timeout = command_timeout
        # The longest time of one attempt: there is time for another server.
        self.attempt_seconds = max(min(command_timeout, 1.0), command_timeout / 3)
        self.observer = observer
        self.servers = Servers(client, io, self.attempt_seconds)
        # The servers whose outage the observer knows of.
        self._down: set[Address | None] = set()

    async def ask(self, key: Key, words: Words, call: Call, until: float) -> Any:
        """Send a command once, and return its reply. Raise ``Unavailable`` after an outage."""
        sent, address = [words], None
        for _ in range(REDIRECTS):
            try:
                address = address or await self.servers.address(key, until, call.failed)
                pool = self.servers.pool(address)
                reply = await self.exchange(pool, sent, until, call)
            except Exception as error:
                reply = error
            if isinstance(reply, AskError):
                address, sent = (reply.host, reply.port), [("ASKING",), words]
                if isinstance(reply, MovedError):
                    await self.servers.moved(reply)
                    sent = [words]
            elif isinstance(reply, Exception):
                failure = self.failed(reply, address, call)
                raise failure from failure.__cause__
            else:
                self._down.discard(address)
                call.failed = None
                return reply
        raise Unavailable("the cluster redirects without end")

    async def exchange(self, pool: Any, commands: Sequence[Words], until: float, call: Call) -> Any:
        """Send commands, and return the last one's reply. It may be an error."""

        def make() -> Coroutine[Any, Any, Any]:
            return self._exchange(pool, commands, until, call)

        call.is_sent = False
        return await self.io.bounded(make, until, (pool, call.waits), call)

    async def _exchange(
        self, pool: Any, commands: Sequence[Words], until: float, call: Call
    ) -> Any:
        io, is_clean, is_lent, ties = self.io, False, False, call.ties
        connection = await io.take(pool, until, call.stop)
        call.unanswered += 1
        call.is_sent = True
        try:
            await io.done(connection.send_packed_command(connection.pack_commands(commands)))
            replies = [await self._reply(connection, until, call.stop) for _ in commands]
            call.unanswered -= 1
            # A tie that failed, or whose caller left, ends with its connection.
            is_clean, is_lent = not ties, call.ties and not isinstance(replies[-1], Exception)
            if is_lent:
                call.lent = pool, connection
            return replies[-1]
        except exceptions.ConnectionError:
            await io.close_unused(pool)
            raise
        finally:
            if not is_lent:
                await self.put_back(pool, connection, is_clean)

    async def _reply(self, connection: Any, until: float, stop: Any) -> Any:
        try:
            return await self.io.receive(connection, until, stop)
        except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
            return error

    async def put_back(self, pool: Any, connection: Any, is_clean: bool) -> None:
        """Return a connection to its pool, which keeps only some unused connections open."""
        if not is_clean or len(pool._available_connections) >= IDLE_CONNECTIONS:
            await self.io.disconnect(connection)
        await self.io.done(pool.release(connection))

    def failed(self, error: BaseException, address: Address | None, call: Call) -> BaseException:
        """Return the error of a call: the outage, or the error that ends the call."""
        if not is_outage(error):
            return final(error, call.token)
        call.failed = address
        outage = Unavailable(f"{self.servers.name(address)}: {error or 'the connection was lost'}")
        outage.is_late, outage.address = is_late(error), address
        outage.__cause__ = error
        return outage

    async def retry(
        self,
        act: Callable[[float], Awaitable[T]],
        call: Call,
        until: float,
        is_in_background: bool = False,
    ) -> T:
        """Repeat an action after outages, until it succeeds or the time is over."""
        for pause in pauses():
            try:
                return await act(min(until, time.monotonic() + self.attempt_seconds))
            except Unavailable as fault:
                if is_in_background:
                    self.report(fault)
                await self.pause(pause, call, until, fault)
        raise AssertionError("there is always another try")

    async def send(
        self, key: Key, words: Words, call: Call, until: float, is_in_background: bool = False
    ) -> Any:
        """Send a command until a server replies, or the time is over."""

        async def once(end: float) -> Any:
            return await self.ask(key, words, call, end)

        return await self.retry(once, call, until, is_in_background)

    async def of_each_key(self, keys: Sequence[Key], verb: str, *words: Any) -> list[Any]:
        """Return the replies to a command about each key, within the command timeout."""
        call, until = Call(), time.monotonic() + self.command_timeout
        return [await self.send(key, (verb, key, *words), call, until) for key in keys]

    async def pause(self, seconds: float, call: Call, until: float, fault: Exception) -> None:
        """Pause before the next try. Raise the fault if there is no time for one."""
        now = time.monotonic()
        # The last try is shortly before the end.
        last = until - FIRST_PAUSE_SECONDS
        if now < until:
            await self.io.pause(min(now + seconds, last) if now < last else until, call.stop)
        if now >= last:
            raise fault

    def go_on(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work in the background. If it fails, the server ends a lock with its lease."""
        self.io.start(quietly(work))

    def report(self, fault: Unavailable) -> None:
        """Tell the observer of an outage, once until the server replies again."""
        if fault.address not in self._down:
            self._down.add(fault.address)
            tell(self.observer.unavailable, fault)


async def quietly(work: Awaitable[Any]) -> None:
    """End without an error."""
    with suppress(Exception):
        await work
