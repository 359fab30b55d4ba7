"""Connections of the locks' own for asyncio, made as those of the client's pool are."""

import asyncio
import math
from typing import Any, Coroutine, Dict, List, Optional, Tuple

from redis import exceptions

from ._errors import final
from ._request import (
    IDLE_CONNECTIONS,
    REDIRECTS,
    Address,
    Key,
    Words,
    address_of,
    command_seconds,
    own_settings,
)


# Longer than any limit that _within has. redis-py takes None for the connection's own limit.
NO_LIMIT = 1e8


class Kept:
    """A connection that stays with a grant which is tied to it."""

    def __init__(self) -> None:
        self.mutex = asyncio.Lock()
        self.link: Any = None
        self.is_closed = False


class Connections:
    """Sends commands, each on a connection that nobody else uses meanwhile.

    They are beside the client's pool: one who waits takes none from it, and needs none that somebody
    else has.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._is_cluster = hasattr(client, "get_node_from_key")
        # Whether a connection has ever been made.
        self.reached = False
        self.forget()

    def forget(self) -> None:
        """Begins anew, as in another event loop or process: its connections are of no use there."""
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._idle: Dict[Address, List[Any]] = {}
        self._moved: Dict[int, Address] = {}

    async def call(self, key: Key, words: Words, seconds: Optional[float] = None) -> Any:
        """The answer to a command, waited for so long."""
        kept = Kept()
        try:
            return await self.call_on(kept, key, words, seconds)
        finally:
            self._put(kept)

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
                    return await self._exchange(kept, words, seconds, asked_at)
                except exceptions.MovedError as error:
                    self._put(kept)
                    self._moved[error.slot_id] = (error.host, error.port)
                except exceptions.AskError as error:
                    self._put(kept)
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
            self._put(kept)

    def _put(self, kept: Kept) -> None:
        link, kept.link = kept.link, None
        if link is None:
            return
        idle = self._idle.setdefault(link.lock_address, [])
        if len(idle) < IDLE_CONNECTIONS:
            idle.append(link)
        else:
            # Closes at once, and waits for nothing.
            asyncio.ensure_future(link.disconnect(nowait=True))

    async def close_kept(self, kept: Kept) -> None:
        async with kept.mutex:
            kept.is_closed = True
            link, kept.link = kept.link, None
        if link is not None:
            await link.disconnect(nowait=True)

    async def close(self) -> None:
        links = [link for idle in self._idle.values() for link in idle]
        self._idle.clear()
        for link in links:
            await link.disconnect(nowait=True)

    async def _exchange(
        self, kept: Kept, words: Words, seconds: Optional[float], asked_at: Optional[Address]
    ) -> Any:
        link = kept.link
        try:
            talk = _talk(link, words, asked_at)
            return await _within(seconds or link.lock_seconds, talk)
        except exceptions.ResponseError:
            raise
        except BaseException:
            kept.link = None
            await link.disconnect(nowait=True)
            raise

    async def _take(self, key: Key, asked_at: Optional[Address]) -> Tuple[Any, bool]:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.forget()
            self._loop = loop
        make, settings = await self._source(key)
        moved = self._moved.get(self._client.keyslot(key)) if self._is_cluster else None
        elsewhere = asked_at or moved
        if elsewhere:
            settings = {**settings, "host": elsewhere[0], "port": elsewhere[1]}
        address = address_of(settings)
        idle = self._idle.get(address)
        if idle:
            return idle.pop(), True
        link = make(**own_settings(settings))
        link.lock_address = address
        link.lock_seconds = command_seconds(settings)
        try:
            await link.connect()
        except BaseException:
            await link.disconnect(nowait=True)
            raise
        self.reached = True
        return link, False

    async def _source(self, key: Key) -> Tuple[Any, Dict[str, Any]]:
        if self._is_cluster:
            await self._client.initialize()
            node = self._client.get_node_from_key(key)
            return node.connection_class, node.connection_kwargs
        pool = self._client.connection_pool
        return pool.connection_class, pool.connection_kwargs

    async def _lost_sight(self) -> None:
        """A node of a cluster can't be reached: asks the others who serves what."""
        if not self._is_cluster:
            return
        self._moved.clear()
        try:
            await self._client.nodes_manager.initialize()
        except (exceptions.RedisError, OSError):
            pass  # None of them answers. The next try asks again.


async def _talk(link: Any, words: Words, asked_at: Optional[Address]) -> Any:
    if asked_at:
        await link.send_command("ASKING")
        await link.read_response()
    await link.send_command(*words)
    return await link.read_response(timeout=NO_LIMIT)


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """Unlike asyncio.wait_for before Python 3.12, this never swallows a cancellation."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda it: it.cancelled() or it.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=None if seconds == math.inf else seconds)
    except BaseException:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise exceptions.TimeoutError("no answer in time")
    return task.result()
