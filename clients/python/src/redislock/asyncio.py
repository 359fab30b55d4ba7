"""Locks for the tasks of an event loop."""

from typing import Any, Optional

from ._errors import Cancelled, Deadlock, LockLost, NotAcquired, RedisLockError
from ._lock import LockBase, LocksBase
from ._tasks import Tasks

__all__ = [
    "Cancelled",
    "Deadlock",
    "Lock",
    "LockLost",
    "Locks",
    "NotAcquired",
    "RedisLockError",
]


class Lock(LockBase):
    """A lock that all users of the same keys share.

    The task that acquired it may acquire it again, and releases it as often. Another task that uses
    this object waits until then.
    """

    async def acquire(self, blocking: bool = True, timeout: Optional[float] = -1) -> Optional[int]:
        """Return the fence, or None if the lock isn't granted in time. No time limit by default."""
        return await self._acquire(blocking, timeout)

    async def release(self) -> bool:
        """Release one hold; the last frees the lock. Return True if this task still held it."""
        return await self._release()

    async def extend(self, lease: float) -> bool:
        """Set the remaining lease, in seconds. Return True if the lock was still held."""
        return await self._extend(lease)

    async def left(self) -> float:
        """Return the remaining lease on the server in seconds, or 0 if the lock isn't held."""
        return await self._left()

    async def locked(self) -> bool:
        """Return True if any owner holds one of the keys."""
        return await self._is_locked()

    async def __aenter__(self) -> "Lock":
        await self._enter()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._exit(error)


class Locks(LocksBase[Lock]):
    """A factory of locks over a client of ``redis.asyncio``, also of a cluster or of Sentinel."""

    _lock_class = Lock

    def __init__(self, client: Any) -> None:
        super().__init__(client, Tasks())

    async def aclose(self) -> None:
        """Close the idle connections. Held locks stay held."""
        await self.connections.close()
