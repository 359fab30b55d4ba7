"""The connections that the grant of a session is tied to."""

import threading
import time
from typing import Any, List, NamedTuple


class Link(NamedTuple):
    pool: Any
    connection: Any
    # True if its last command got a reply, so the next command may use it.
    is_clean: bool
    # The time after which no command of it can still arrive at the server.
    settled_at: float


class Tie:
    """Keeps the connections of a session out of their pool while the grant is held.

    The server ties the grant to the connection of the latest EXTEND, and releases the lock when
    that one closes. A command without a reply may arrive late and move the tie back. So its
    connection stays open for a lease, and until the server has moved the tie to another one.
    """

    def __init__(self, io: Any, lease: float) -> None:
        self._io = io
        self._lease = lease
        self._guard = threading.Lock()
        # The connections that no command uses now.
        self._links: List[Link] = []
        self._is_over = False

    def latest(self, pool: Any) -> Any:
        """Take the connection for the next command, or return None if it needs a new one."""
        with self._guard:
            for link in reversed(self._links):
                if link.is_clean and link.pool is pool:
                    self._links.remove(link)
                    return link.connection
        return None

    def keep(self, pool: Any, connection: Any, is_clean: bool) -> None:
        """Keep a connection after a command."""
        settled_at = time.monotonic() + (0 if is_clean else self._lease)
        with self._guard:
            self._links.append(Link(pool, connection, is_clean, settled_at))
        if self._is_over:
            self.cut()

    def moved(self, asked_at: float) -> None:
        """Close the connections whose commands arrived before the one that moved the tie."""
        with self._guard:
            earlier = [link for link in self._links if link.settled_at < asked_at]
            self._links = [link for link in self._links if link.settled_at >= asked_at]
        for link in earlier:
            self._io.put_back(link.pool, link.connection, False)

    def close(self) -> None:
        """Put the connections back, because the server has released the lock."""
        for link in self._end():
            self._io.put_back(link.pool, link.connection, link.is_clean)

    def cut(self) -> None:
        """Close the connections. Otherwise the server would go on renewing the lock."""
        for link in self._end():
            self._io.put_back(link.pool, link.connection, False)

    def _end(self) -> List[Link]:
        with self._guard:
            self._is_over = True
            links, self._links = self._links, []
        return links

    def abandon(self) -> None:
        """Drop the copies of the connections in a forked process."""
        self._links.clear()
