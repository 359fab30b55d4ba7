"""Separate connections for locks, made with the settings of the client's pool."""

import socket
from typing import Any, Dict, List, Optional, Tuple, Union

from redis import exceptions

from ._errors import final
from ._request import Key, Words
from ._tasks import Tasks
from ._threads import Threads

Io = Union[Threads, Tasks]
Address = Tuple[Any, Any]

# The time limit of a command that doesn't wait, if the client sets no limit.
COMMAND_SECONDS = 5.0
# The most idle connections to one server.
IDLE_CONNECTIONS = 8
# The most redirections of one command in a cluster.
REDIRECTS = 8
# Keepalive notices a peer that died silently, because a wait may be silent for long.
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


class Kept:
    """A connection that stays with a grant, so that the grant can be tied to it."""

    def __init__(self, io: Io) -> None:
        self.mutex = io.mutex()
        self.link: Any = None
        self.is_closed = False
        # True if a command was sent whose reply didn't come.
        self.unanswered = False


class Connections:
    """Send commands, each on a connection that no other command uses meanwhile.

    The connections are separate from the client's pool. So a waiter takes no connection from the
    pool, and a full pool holds up no lock.
    """

    def __init__(self, client: Any, io: Io) -> None:
        self._client = client
        self._io = io
        self._is_cluster = hasattr(client, "get_node_from_key")
        # True once a connection has been made.
        self.reached = False
        self.forget()

    def forget(self) -> None:
        """Drop all connections, which are useless in another event loop or process."""
        self._state = self._io.condition()
        self._loop: Any = None
        self._idle: Dict[Address, List[Any]] = {}
        self._moved: Dict[int, Address] = {}

    async def call(self, key: Key, words: Words, seconds: Optional[float] = None) -> Any:
        """Send a command, and return its reply, which must come within the time limit."""
        kept = Kept(self._io)
        try:
            return await self.call_on(kept, key, words, seconds)
        finally:
            await self.give_back(kept)

    async def call_on(
        self, kept: Kept, key: Key, words: Words, seconds: Optional[float] = None
    ) -> Any:
        """Send a command like ``call``, on a connection that ``kept`` has or gets.

        Without a reply the connection is closed.
        """
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
                    # Only a reused connection may have been closed long ago.
                    if not reused or final(error) or isinstance(error, exceptions.TimeoutError):
                        await self._lost_sight()
                        raise
                    await self.close()
            raise exceptions.ClusterError("the cluster sends on and on")

    async def give_back(self, kept: Kept) -> None:
        """Put the connection back: this grant sends no more commands on it."""
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
        """Return a connection to the server of a key, and True if the connection is reused."""
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
        """Return the connection pool for the server of a key."""
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
        """Look up the slots of a cluster again after a node can't be reached."""
        if not self._is_cluster:
            return
        self._moved.clear()
        try:
            await self._io.done(self._client.nodes_manager.initialize())
        except (exceptions.RedisError, OSError):
            pass  # No node replied. The next try asks again.


def _own_settings(pool_settings: Dict[str, Any]) -> Dict[str, Any]:
    """Return the settings of a pool, changed for a connection that only locks use.

    This package does its own retries. It also sets its own time limits, except for the handshake.
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
