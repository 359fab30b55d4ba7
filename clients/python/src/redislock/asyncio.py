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
    """A lock that is shared by all who name the same keys.

    The task that acquired it may acquire it again, and releases it as often. Another task that shares
    this object waits until then.
    """

    async def acquire(self, blocking: bool = True, timeout: Optional[float] = -1) -> Optional[int]:
        """The fence, or None where the lock wasn't to be had in time. Waits for ever by default."""
        return await self._acquire(blocking, timeout)

    async def release(self) -> bool:
        """Takes back one acquire(); the last one frees the lock. Whether this task still held it."""
        return await self._release()

    async def extend(self, lease: float) -> bool:
        """Sets what is left of the lease, in seconds. Whether the lock was still held."""
        return await self._extend(lease)

    async def left(self) -> float:
        """The seconds left of the lease, by the server; 0 where the lock isn't held."""
        return await self._left()

    async def locked(self) -> bool:
        """Whether anybody holds one of the keys."""
        return await self._is_locked()

    async def __aenter__(self) -> "Lock":
        await self._enter()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._exit(error)


class Locks(LocksBase[Lock]):
    """Makes locks with the settings of a client of ``redis.asyncio``, of a cluster or by Sentinel too."""

    _lock_class = Lock

    def __init__(self, client: Any) -> None:
        super().__init__(client, Tasks())

    async def aclose(self) -> None:
        """Closes connections that nobody uses. What is held stays so."""
        await self.connections.close()
