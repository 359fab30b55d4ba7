"""Connections of the locks' own, made as those of the client's pool are."""

import socket
from typing import Any, Dict, List, Optional, Tuple, Union

from redis import exceptions

from ._errors import final
from ._request import Key, Words
from ._tasks import Tasks
from ._threads import Threads

Io = Union[Threads, Tasks]
Address = Tuple[Any, Any]

# How long a command that doesn't wait may take where the client has no limit of its own.
COMMAND_SECONDS = 5.0
# How many connections to a server are kept for the next command.
IDLE_CONNECTIONS = 8
# How many times in a row a cluster may send on.
REDIRECTS = 8
# A peer that is gone without a word is noticed, though a wait may be silent for long.
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


class Kept:
    """A connection that stays with a grant which is tied to it."""

    def __init__(self, io: Io) -> None:
        self.mutex = io.mutex()
        self.link: Any = None
        self.is_closed = False
        # Whether a command was sent whose answer didn't come.
        self.unanswered = False


class Connections:
    """Sends commands, each on a connection that nobody else uses meanwhile.

    They are beside the client's pool: one who waits takes none from it, and needs none that somebody
    else has.
    """

    def __init__(self, client: Any, io: Io) -> None:
        self._client = client
        self._io = io
        self._is_cluster = hasattr(client, "get_node_from_key")
        # Whether a connection has ever been made.
        self.reached = False
        self.forget()

    def forget(self) -> None:
        """Begins anew, as in another event loop or process: its connections are of no use there."""
        self._state = self._io.condition()
        self._loop: Any = None
        self._idle: Dict[Address, List[Any]] = {}
        self._moved: Dict[int, Address] = {}

    async def call(self, key: Key, words: Words, seconds: Optional[float] = None) -> Any:
        """The answer to a command, waited for so long."""
        kept = Kept(self._io)
        try:
            return await self.call_on(kept, key, words, seconds)
        finally:
            await self.give_back(kept)

    async def call_on(
        self, kept: Kept, key: Key, words: Words, seconds: Optional[float] = None
    ) -> Any:
        """The same on a connection that is kept, or becomes so. It is gone where the answer didn't come."""
        async with kept.mutex:
            if kept.is_closed:
                raise exceptions.ConnectionError("the grant was given back")
            asked_at: Optional[Address] = None
            for _ in range(REDIRECTS):
                reused = kept.link is not None
                try:
                    if kept.link is None:
                        kept.link, reused = await self._take(key, asked_at)
                    commands = (("ASKING",), words) if asked_at else (words,)
                    return await self._exchange(kept, commands, seconds)
                except exceptions.MovedError as error:
                    await self._put(kept)
                    self._moved[error.slot_id] = (error.host, error.port)
                except exceptions.AskError as error:
                    await self._put(kept)
                    asked_at = (error.host, error.port)
                except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
                    # Only one that was there before may have been closed long ago.
                    if not reused or final(error) or isinstance(error, exceptions.TimeoutError):
                        await self._lost_sight()
                        raise
                    await self.close()
            raise exceptions.ClusterError("the cluster sends on and on")

    async def give_back(self, kept: Kept) -> None:
        """Nothing more is sent on it for this grant."""
        async with kept.mutex:
            kept.is_closed = True
            await self._put(kept)

    async def close_kept(self, kept: Kept) -> None:
        async with kept.mutex:
            kept.is_closed = True
            link, kept.link = kept.link, None
            if link is not None:
                await self._io.close(link)

    async def close(self) -> None:
        with self._state:
            links = [link for idle in self._idle.values() for link in idle]
            self._idle.clear()
        for link in links:
            await self._io.close(link)

    async def _exchange(self, kept: Kept, commands: Tuple[Words, ...], seconds: Any) -> Any:
        link = kept.link
        try:
            return await self._io.exchange(link, commands, seconds or link.lock_seconds)
        except exceptions.ResponseError:
            raise
        except BaseException:
            kept.link = None
            kept.unanswered = True
            await self._io.close(link)
            raise

    async def _take(self, key: Key, asked_at: Optional[Address]) -> Tuple[Any, bool]:
        """A connection to who has a key, and whether it was there before."""
        if self._loop is not self._io.loop():
            self.forget()
            self._loop = self._io.loop()
        pool, elsewhere = await self._pool(key), asked_at
        if self._is_cluster and not asked_at:
            elsewhere = self._moved.get(self._client.keyslot(key))
        settings = pool.connection_kwargs
        if elsewhere:
            settings = {**settings, "host": elsewhere[0], "port": elsewhere[1]}
        address = settings.get("host", settings.get("path")), settings.get("port")
        with self._state:
            if self._idle.get(address):
                return self._idle[address].pop(), True
        settings = _own_settings(settings)
        link = pool.connection_class(**settings)
        link.lock_address, link.lock_seconds = address, settings["socket_timeout"]
        try:
            await self._io.done(link.connect())
        except BaseException:
            await self._io.close(link)
            raise
        self.reached = True
        return link, False

    async def _pool(self, key: Key) -> Any:
        """What knows how connections to who has a key are made."""
        if self._is_cluster:
            return await self._io.node(self._client, key)
        return self._client.connection_pool

    async def _put(self, kept: Kept) -> None:
        link, kept.link = kept.link, None
        if link is None:
            return
        with self._state:
            idle = self._idle.setdefault(link.lock_address, [])
            if len(idle) < IDLE_CONNECTIONS:
                idle.append(link)
                return
        await self._io.close(link)

    async def _lost_sight(self) -> None:
        """A node of a cluster can't be reached: asks the others who serves what."""
        if not self._is_cluster:
            return
        self._moved.clear()
        try:
            await self._io.done(self._client.nodes_manager.initialize())
        except (exceptions.RedisError, OSError):
            pass  # None of them answers. The next try asks again.


def _own_settings(pool_settings: Dict[str, Any]) -> Dict[str, Any]:
    """How a connection like those of a pool is made that is used for locks alone.

    Repeated tries are this package's own, and so are time limits, but for that of the handshake.
    """
    settings = {
        name: value for name, value in pool_settings.items() if "maint_notifications" not in name
    }
    settings.update(
        decode_responses=False,
        socket_timeout=settings.get("socket_timeout") or COMMAND_SECONDS,
        socket_connect_timeout=settings.get("socket_connect_timeout") or COMMAND_SECONDS,
        retry=None,
        retry_on_timeout=False,
        retry_on_error=[],
        health_check_interval=0,
    )
    if "path" not in settings:
        settings.update(socket_keepalive=True, socket_keepalive_options=KEEPALIVE)
    return settings
