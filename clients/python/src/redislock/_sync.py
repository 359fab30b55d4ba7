"""Locks for threads."""

from typing import Any, Optional

import redis
from redis.cluster import RedisCluster

from ._lock import FenceBase, LockBase, LocksBase
from ._observer import Observer
from ._threads import Threads, run


class Fence(FenceBase):
    """The fence of a grant. ``with lock.acquire(timeout=10):`` releases the lock at its end."""

    _lock: "Lock"

    def __enter__(self) -> "Fence":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._lock.__exit__(kind, error, trace)


class Lock(LockBase):
    """A lock on one key or several. Made by ``Locks.lock``.

    While a thread holds it, another thread that acquires the same object waits. Every call except
    ``acquire`` returns within the command timeout, or raises ``Unavailable``.
    """

    _fence_class = Fence

    def acquire(self, timeout: Optional[float] = None, *, blocking: bool = True) -> Optional[Fence]:
        """Return the fence, or None if somebody else has the lock until the time is over.

        :param timeout: the longest wait in seconds, 0 or more; 0 tries once. Default: None, the
            lock's ``wait``, which is without a limit by default.
        :param blocking: False tries once.
        :raises Unavailable: no server could be asked until the time was over.
        """
        fence: Optional[Fence] = run(self._acquire(timeout, blocking))  # type: ignore[assignment]
        return fence

    def try_acquire(self) -> Optional[Fence]:
        """Return the fence, or None if somebody else has the lock now."""
        return self.acquire(0)

    def release(self) -> bool:
        """Release one hold; the last frees the lock. Return False if the lock had been lost.

        :raises NotHeld: the lock isn't held, or it is reentrant and another thread holds it.
        :raises Unavailable: no server could be asked. The library goes on trying in the background,
            and the lock ends with its lease at the latest.
        """
        return run(self._release())

    def cancel(self) -> None:
        """Cancel the waits of all threads in this object's ``acquire()``, which raise Cancelled."""
        self._cancel()

    def extend(self, lease: float) -> bool:
        """Set the lease, which counts from now, in seconds. Return False if the lock was lost."""
        return run(self._extend(lease))

    def left(self) -> float:
        """Return the remaining lease on the server in seconds, or 0 if the lock isn't held."""
        return run(self._left())

    def owned(self) -> bool:
        """Ask the server. Return True if this lock holds all its keys."""
        return run(self._left()) > 0

    def locked(self) -> bool:
        """Return True if any owner holds one of the keys."""
        return run(self._is_locked())

    def __enter__(self) -> "Lock":
        run(self._enter())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        run(self._exit(error))


class Locks(LocksBase[Lock]):
    """A factory of locks over a ``redis.Redis``, a ``RedisCluster`` or a client of Sentinel."""

    _lock_class = Lock
    _client_classes = (redis.Redis, RedisCluster)

    def __init__(
        self, client: Any, *, command_timeout: float = 1.0, observer: Optional[Observer] = None
    ) -> None:
        """Make it with the client's settings. Nothing connects before the first command.

        :param command_timeout: the longest time, in seconds, of each call that doesn't wait for a
            lock, with connecting and sending again; more than 0. Default: 1.
        :param observer: hooks for logs and metrics. Default: None, which logs outages.
        """
        super().__init__(client, Threads(), command_timeout, observer)

    def release_all(self) -> int:
        """Release all locks that this object's locks hold. Return how many were still held."""
        return run(self._release_all())

    def close(self) -> None:
        """Close the idle connections. Held locks stay held."""
        run(self._io.close())
