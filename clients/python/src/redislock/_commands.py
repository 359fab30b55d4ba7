"""Commands, each sent to the server of its key, and sent again after an outage."""

import time
from contextlib import suppress
from typing import (
    Any,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    TypeVar,
)

from redis.exceptions import AskError, MovedError

from ._errors import Unavailable, final, is_late, is_outage, outage_text
from ._observer import Observer, tell
from ._options import Key, Words
from ._servers import Address, Servers

T = TypeVar("T")

# The most redirections of one command in a cluster.
REDIRECTS = 8
# The pause after the first failure, and the longest one.
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0


class Call:
    """The commands of one call of the program."""

    def __init__(self, token: bytes = b"", stop: Any = None, tie: Any = None) -> None:
        self.token = token
        # An event that ends the call, if the program gave one.
        self.stop = stop
        # The connections that the grant is tied to, if it is a session.
        self.tie = tie
        # The number of commands that got no reply, and may still arrive.
        self.unanswered = 0
        # The node of a cluster to ask next, because the node of the slot failed.
        self.elsewhere: Optional[Address] = None


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
        self._down: Set[Optional[Address]] = set()

    async def ask(
        self, key: Key, words: Words, call: Call, until: float, is_of_waiter: bool = False
    ) -> Any:
        """Send a command once, and return its reply. Raise ``Unavailable`` after an outage."""
        sent = [words]
        address, call.elsewhere = call.elsewhere, None
        for _ in range(REDIRECTS):
            began = time.monotonic()
            try:
                address = address or await self.servers.address(key, until)
                pool = self.servers.pool(address)
                reply = await self.io.exchange(pool, sent, until, call, is_of_waiter)
            except Exception as error:
                failure = self.failed(error, address, call, until - began)
                raise failure from failure.__cause__
            if isinstance(reply, AskError):
                address, sent = (reply.host, reply.port), [("ASKING",), words]
                if isinstance(reply, MovedError):
                    await self.servers.moved(reply)
                    sent = [words]
                continue
            if not isinstance(reply, Exception):
                self._down.discard(address)
                return reply
            raise self.failed(reply, address, call, 0) from None
        raise Unavailable("the cluster redirects without end")

    def failed(
        self, error: BaseException, address: Optional[Address], call: Call, seconds: float
    ) -> BaseException:
        """Return the error of a call: the outage, or the error that ends the call."""
        if not is_outage(error):
            return final(error, call.token)
        call.elsewhere = self.servers.other_than(address)
        name = self.servers.name(address)
        late = f"no answer from {name} within {max(seconds, 0):.2g} s"
        outage = Unavailable(late if is_late(error) else outage_text(error, name))
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
        fault: Optional[Unavailable] = None
        for pause in pauses():
            began = time.monotonic()
            try:
                return await act(min(until, began + self.attempt_seconds))
            except Unavailable as error:
                # A last try that had little time says nothing about the cause.
                if fault is None or until - began > FIRST_PAUSE_SECONDS:
                    fault = error
            if is_in_background:
                self.report(fault)
            await self.pause(pause, call, until, fault)
        raise AssertionError("there is always another try")

    async def of_each_key(
        self, keys: Sequence[Key], command: str, *words: Any, call: Call
    ) -> List[Any]:
        """Return the replies to a command about each key, within the command timeout."""
        until = time.monotonic() + self.command_timeout

        async def each(end: float) -> List[Any]:
            return [await self.ask(key, (command, key, *words), call, end) for key in keys]

        return await self.retry(each, call, until)

    async def pause(self, seconds: float, call: Call, until: float, fault: Exception) -> None:
        """Pause before the next try. Raise the fault if there is no time for one."""
        left = until - time.monotonic()
        if left <= 0:
            raise fault
        before_last = left - FIRST_PAUSE_SECONDS
        await self.io.sleep(min(seconds, before_last if before_last > 0 else left), call.stop)

    def go_on(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work in the background. If it fails, the server ends a lock with its lease."""
        try:
            self.io.start(quietly(work))
        except RuntimeError as error:
            # No thread can be started.
            work.close()
            tell(self.observer.unavailable, error)

    def report(self, fault: Unavailable) -> None:
        """Tell the observer of an outage, once until the server replies again."""
        if fault.address not in self._down:
            self._down.add(fault.address)
            tell(self.observer.unavailable, fault)


async def quietly(work: Awaitable[Any]) -> None:
    """End without an error."""
    with suppress(Exception):
        await work
