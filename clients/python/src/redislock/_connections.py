"""Connections of the locks' own, made as those of the client's pool are."""

import time
from threading import Lock as Mutex
from typing import Any, Dict, List, Optional, Tuple

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


class Kept:
    """A connection that stays with a grant which is tied to it."""

    def __init__(self) -> None:
        self.mutex = Mutex()
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
        """Begins anew, as in a process that was forked: its connections are another's."""
        self._mutex = Mutex()
        self._idle: Dict[Address, List[Any]] = {}
        self._moved: Dict[int, Address] = {}

    def call(self, key: Key, words: Words, seconds: Optional[float] = None) -> Any:
        """The answer to a command, waited for so long."""
        kept = Kept()
        try:
            return self.call_on(kept, key, words, seconds)
        finally:
            self.give_back(kept)

    def call_on(self, kept: Kept, key: Key, words: Words, seconds: Optional[float] = None) -> Any:
        """The same on a connection that is kept, or becomes so. It is gone where the answer didn't come."""
        with kept.mutex:
            if kept.is_closed:
                raise exceptions.ConnectionError("the grant was given back")
            asked_at: Optional[Address] = None
            for _ in range(REDIRECTS):
                reused = kept.link is not None
                try:
                    if kept.link is None:
                        kept.link, reused = self._take(key, asked_at)
                    return self._exchange(kept, words, seconds, asked_at)
                except exceptions.MovedError as error:
                    self._put(kept)
                    self._moved[error.slot_id] = (error.host, error.port)
                except exceptions.AskError as error:
                    self._put(kept)
                    asked_at = (error.host, error.port)
                except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
                    # Only one that was there before may have been closed long ago.
                    if not reused or final(error) or isinstance(error, exceptions.TimeoutError):
                        self._lost_sight()
                        raise
                    self._drop_idle()
            raise exceptions.ClusterError("the cluster sends on and on")

    def give_back(self, kept: Kept) -> None:
        """Nothing more is sent on it for this grant."""
        with kept.mutex:
            kept.is_closed = True
            self._put(kept)

    def close_kept(self, kept: Kept) -> None:
        with kept.mutex:
            kept.is_closed = True
            link, kept.link = kept.link, None
        if link is not None:
            link.disconnect()

    def close(self) -> None:
        self._drop_idle()

    def _exchange(self, kept: Kept, words: Words, seconds: Optional[float], asked_at: Any) -> Any:
        link = kept.link
        limit = time.monotonic() + (seconds or link.lock_seconds)
        try:
            if asked_at:
                link.send_command("ASKING")
                _receive(link, limit)
            link.send_command(*words)
            return _receive(link, limit)
        except exceptions.ResponseError:
            raise
        except BaseException:
            kept.link = None
            link.disconnect()
            raise

    def _take(self, key: Key, asked_at: Optional[Address]) -> Tuple[Any, bool]:
        make, settings = self._source(key)
        moved = self._moved.get(self._client.keyslot(key)) if self._is_cluster else None
        elsewhere = asked_at or moved
        if elsewhere:
            settings = {**settings, "host": elsewhere[0], "port": elsewhere[1]}
        address = address_of(settings)
        with self._mutex:
            idle = self._idle.get(address)
            if idle:
                return idle.pop(), True
        link = make(**own_settings(settings))
        link.lock_address = address
        link.lock_seconds = command_seconds(settings)
        try:
            link.connect()
        except BaseException:
            link.disconnect()
            raise
        self.reached = True
        return link, False

    def _source(self, key: Key) -> Tuple[Any, Dict[str, Any]]:
        client = self._client
        if self._is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(key))
        pool = client.connection_pool
        return pool.connection_class, pool.connection_kwargs

    def _put(self, kept: Kept) -> None:
        link, kept.link = kept.link, None
        if link is not None:
            with self._mutex:
                idle = self._idle.setdefault(link.lock_address, [])
                if len(idle) < IDLE_CONNECTIONS:
                    idle.append(link)
                    return
            link.disconnect()

    def _drop_idle(self) -> None:
        with self._mutex:
            links = [link for idle in self._idle.values() for link in idle]
            self._idle.clear()
        for link in links:
            link.disconnect()

    def _lost_sight(self) -> None:
        """A node of a cluster can't be reached: asks the others who serves what."""
        if not self._is_cluster:
            return
        self._moved.clear()
        try:
            self._client.nodes_manager.initialize()
        except (exceptions.RedisError, OSError):
            pass  # None of them answers. The next try asks again.


def _receive(link: Any, limit: float) -> Any:
    # In parts, because no socket takes an endless time limit.
    while not link.can_read(timeout=max(0.0, min(limit - time.monotonic(), 60.0))):
        if time.monotonic() >= limit:
            raise exceptions.TimeoutError("no answer in time")
    return link.read_response()
