"""Commands, each sent to the server of its key, and sent again after an outage."""

import math
import random
import socket
import time
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from redis import exceptions

from ._errors import NoAnswer, Unavailable, final, is_outage, outage_text
from ._observer import Observer, tell
from ._options import Key, Words
from ._tasks import Tasks
from ._threads import Threads

T = TypeVar("T")
Io = Union[Threads, Tasks]
Address = Tuple[Any, Any]

# The most redirections of one command in a cluster.
REDIRECTS = 8
# The part of a time limit that is left for the last try.
LAST_TRY_SECONDS = 0.1
# Keepalive notices a peer that died silently, even while nothing is sent.
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


def pauses() -> Iterator[float]:
    """Yield the pause before each next try."""
    pause = 0.05
    while True:
        yield pause
        pause = min(2 * pause, 1.0)


class Servers:
    """Finds the server of a key, and connects to it with the settings of the client's pool.

    The connections are separate from that pool. So a waiter takes no connection from the pool, and
    a full pool holds up no lock.
    """

    def __init__(self, client: Any, io: Io, command_timeout: float) -> None:
        self.client = client
        self.is_cluster = hasattr(client, "get_node_from_key")
        self._io = io
        self._command_timeout = command_timeout
        # The longest time of one attempt: there is time for another server.
        self.attempt_timeout = max(min(command_timeout, 1.0), command_timeout / 3)
        self.moved: Dict[int, Address] = {}

    def find(self, key: Key, elsewhere: Optional[Address] = None) -> Optional[Address]:
        """Return the address of a key's server, or None if it isn't known yet."""
        if elsewhere is not None:
            return elsewhere
        if self.is_cluster:
            moved = self.moved.get(self.client.keyslot(key))
            node = None if moved else self._node(key)
            return moved if node is None else (node.host, node.port)
        pool = self.client.connection_pool
        if hasattr(pool, "sentinel_manager"):
            # The newest primary that this process knows of.
            address: Optional[Address] = pool.master_address
            return address
        settings = pool.connection_kwargs
        if "path" in settings:
            return settings["path"], None
        # The defaults of redis-py. A connection is filed under its own host and port.
        return settings.get("host") or "localhost", int(settings.get("port") or 6379)

    def name(self, key: Key, elsewhere: Optional[Address]) -> str:
        address = self.find(key, elsewhere)
        if address is None:
            return "the cluster" if self.is_cluster else "Sentinel"
        return str(address[0]) if address[1] is None else f"{address[0]}:{address[1]}"

    def other_than(self, address: Optional[Address]) -> Optional[Address]:
        """Return another node of the cluster. It will redirect to the node that it knows of."""
        if not self.is_cluster:
            return None
        self.moved = {slot: at for slot, at in self.moved.items() if at != address}
        others = {(node.host, node.port) for node in self.client.get_nodes()} - {address}
        return random.choice(sorted(others)) if others else None

    async def open(self, key: Key, elsewhere: Optional[Address]) -> Tuple[Any, Address]:
        """Return a new connection and its address. Takes as long as the network and DNS do."""
        pool = self.client.connection_pool if not self.is_cluster else await self._pool(key)
        settings = self._own_settings(pool.connection_kwargs)
        address = self.find(key, elsewhere)
        if (elsewhere or self.is_cluster) and address:
            settings.update(host=address[0], port=address[1])
        raw = pool.connection_class(**settings)
        try:
            await self._io.done(raw.connect())
        except BaseException:
            await self._io.abandon(raw)
            raise
        return raw, (getattr(raw, "host", getattr(raw, "path", None)), getattr(raw, "port", None))

    def _node(self, key: Key) -> Any:
        try:
            return self.client.get_node_from_key(key)
        except (exceptions.RedisClusterException, KeyError, IndexError):
            return None

    async def _pool(self, key: Key) -> Any:
        await self._io.learn_nodes(self.client)
        node = self._node(key) or random.choice(list(self.client.get_nodes()))
        return self._io.pool(self.client, node)

    def _own_settings(self, pool_settings: Dict[str, Any]) -> Dict[str, Any]:
        """Return the settings of a pool, changed for a connection that only locks use.

        This package does its own retries, and sets its own time limits.
        """
        settings = {
            name: value
            for name, value in pool_settings.items()
            if "maint_notifications" not in name
        }
        settings.update(
            decode_responses=False,
            protocol=2,
            socket_timeout=self._io.socket_timeout(self._command_timeout),
            socket_connect_timeout=self._command_timeout,
            retry=None,
            retry_on_timeout=False,
            retry_on_error=[],
            health_check_interval=0,
        )
        if "path" not in settings:
            settings.update(socket_keepalive=True, socket_keepalive_options=KEEPALIVE)
        return settings


class Commands:
    """Sends commands for the locks of one client."""

    def __init__(self, client: Any, io: Io, command_timeout: float, observer: Observer) -> None:
        self.io = io
        self.command_timeout = command_timeout
        self.observer = observer
        self.servers = Servers(client, io, command_timeout)
        self.attempt_timeout = self.servers.attempt_timeout

    async def ask(
        self,
        key: Key,
        commands: Sequence[Words],
        call: Any,
        until: float,
        answer_by: Optional[float] = None,
        kind: str = "commands",
    ) -> List[Any]:
        """Send commands once, and return their replies.

        Raise ``Unavailable`` after an outage. With ``answer_by``, raise ``NoAnswer`` if the server
        took the commands and didn't reply by then.
        """
        elsewhere, call.elsewhere = call.elsewhere, None
        asking = False
        for _ in range(REDIRECTS):
            began = time.monotonic()
            address, is_sent = elsewhere, False
            try:
                link = await self.io.take(self.servers, key, elsewhere, call, until, kind)
                address, is_sent, call.link = link.address, True, link
                words = [("ASKING",), *commands] if asking else commands
                replies = await self._exchange(link, words, call, answer_by or until)
            except Exception as error:
                if isinstance(error, NoAnswer) and answer_by is not None and is_sent:
                    raise
                if not is_outage(error):
                    raise
                raise self._outage(key, error, address, call, until - began) from error
            replies = replies[len(words) - len(commands) :]
            wrong = next((reply for reply in replies if isinstance(reply, Exception)), None)
            if isinstance(wrong, exceptions.AskError):
                call.part(self.io)
                elsewhere = (wrong.host, wrong.port)
                asking = not isinstance(wrong, exceptions.MovedError)
                if not asking:
                    self.servers.moved[wrong.slot_id] = elsewhere
                continue
            if wrong is None:
                return replies
            if is_outage(wrong):
                call.part(self.io)
                raise self._outage(key, wrong, link.address, call, 0) from wrong
            raise wrong
        raise Unavailable("the cluster redirects without end")

    async def _exchange(
        self, link: Any, commands: Sequence[Words], call: Any, until: float
    ) -> List[Any]:
        try:
            replies: List[Any] = await link.exchange(commands, until, call)
            return replies
        except BaseException:
            # A renewal of the same session may have opened another connection meanwhile.
            if call.kept.link is link:
                call.kept.link = None
            call.unanswered.append(link)
            raise

    def _outage(
        self, key: Key, error: BaseException, address: Optional[Address], call: Any, seconds: float
    ) -> Unavailable:
        """Return the error of an outage. Let the next try use another connection or node."""
        name = self.servers.name(key, address)
        is_silent = isinstance(error, (NoAnswer, exceptions.TimeoutError))
        # A connection isn't dead because a short limit is over.
        if not is_silent or seconds > 0.9 * self.attempt_timeout:
            address = address or self.servers.find(key)
            self.io.drop(address)
            call.elsewhere = self.servers.other_than(address)
        if is_silent:
            return Unavailable(f"no answer from {name} within {max(seconds, 0):.2g} s")
        return Unavailable(outage_text(error, name))

    async def retry(
        self,
        act: Callable[[float], Awaitable[T]],
        call: Any,
        until: float,
        in_background: bool = False,
    ) -> T:
        """Repeat an action after outages, until it succeeds or the time is over."""
        fault: Optional[Exception] = None
        for pause in pauses():
            began = time.monotonic()
            try:
                result = await act(min(until, began + self.attempt_timeout))
                call.is_reported = False
                return result
            except Exception as error:
                if not is_outage(error):
                    raise final(error, call.token) from None
                # A last try that had little time says nothing about the cause.
                if fault is None or until - began > LAST_TRY_SECONDS:
                    fault = error
            call.has_waited = True
            if (in_background or until == math.inf) and not call.is_reported:
                call.is_reported = True
                tell(self.observer.unavailable, fault)
            left = until - time.monotonic()
            if left <= 0:
                raise fault
            before_last = left - LAST_TRY_SECONDS / 2
            await call.wait(self.io.gate(), min(pause, before_last if before_last > 0 else left))
        raise AssertionError("there is always another try")
