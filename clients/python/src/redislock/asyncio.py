"""Locks for the tasks of an event loop."""

from typing import Any, Optional

from redis.asyncio import Redis, RedisCluster

from ._errors import (
    AlreadyHeld,
    Cancelled,
    Deadlock,
    LockLost,
    ModuleMissing,
    NotAcquired,
    NotHeld,
    NotReplicated,
    RedisLockError,
    Unavailable,
)
from ._lock import FenceBase, LockBase, LocksBase
from ._observer import Observer
from ._tasks import Tasks

__all__ = [
    "AlreadyHeld",
    "Cancelled",
    "Deadlock",
    "Fence",
    "Lock",
    "LockLost",
    "Locks",
    "ModuleMissing",
    "NotAcquired",
    "NotHeld",
    "NotReplicated",
    "Observer",
    "RedisLockError",
    "Unavailable",
]


class Fence(FenceBase):
    """The fence of a grant. ``async with await lock.acquire(10):`` releases it at its end."""

    _lock: "Lock"

    async def __aenter__(self) -> "Fence":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._lock.__aexit__(kind, error, trace)


class Lock(LockBase):
    """A lock on one key or several. Made by ``Locks.lock``.

    While it is held, a task that acquires the same object waits. Every call except ``acquire``
    returns within the command timeout, or raises ``Unavailable``.
    """

    _fence_class = Fence

    async def acquire(
        self, timeout: Optional[float] = None, *, blocking: bool = True
    ) -> Optional[Fence]:
        """Return the fence, or None if somebody else has the lock until the time is over.

        :param timeout: the longest wait in seconds, 0 or more; 0 tries once. Default: None, the
            lock's ``wait``, which is without a limit by default.
        :param blocking: False tries once.
        :raises Unavailable: no server could be asked until the time was over.
        """
        fence: Optional[Fence] = await self._acquire(timeout, blocking)  # type: ignore[assignment]
        return fence

    async def try_acquire(self) -> Optional[Fence]:
        """Return the fence, or None if somebody else has the lock now."""
        return await self.acquire(0)

    async def release(self) -> bool:
        """Release one hold; the last frees the lock. Return False if the lock had been lost.

        :raises NotHeld: the lock isn't held.
        :raises Unavailable: no server could be asked. The library goes on trying in the background,
            and the lock ends with its lease at the latest.
        """
        return await self._release()

    async def extend(self, lease: float) -> bool:
        """Set the lease, which counts from now, in seconds. Return False if the lock was lost."""
        return await self._extend(lease)

    async def left(self) -> float:
        """Return the remaining lease on the server in seconds, or 0 if the lock isn't held."""
        return await self._left()

    async def owned(self) -> bool:
        """Ask the server. Return True if this lock holds all its keys."""
        return await self._left() > 0

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
    _client_classes = (Redis, RedisCluster)

    def __init__(
        self, client: Any, *, command_timeout: float = 1.0, observer: Optional[Observer] = None
    ) -> None:
        """Make it with the client's settings. Nothing connects before the first command.

        :param command_timeout: the longest time, in seconds, of each call that doesn't wait for a
            lock, with connecting and sending again; more than 0. Default: 1.
        :param observer: hooks for logs and metrics. Default: None, which logs outages.
        """
        super().__init__(client, Tasks(), command_timeout, observer)

    async def release_all(self) -> int:
        """Release all locks that this object's locks hold. Return how many were still held."""
        return await self._release_all()

    async def aclose(self) -> None:
        """Close the connections. Held locks stay held."""
        await self._io.close()
