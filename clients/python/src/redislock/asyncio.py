"""Locks for the tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Callable, TypeVar

from redis.asyncio import Redis, RedisCluster

from . import _errors
from ._errors import *  # noqa: F403
from ._errors import LockLost
from ._grant import GrantBase
from ._locks import LockBase, LocksBase
from ._observer import Observer
from ._options import Key
from ._tasks import Tasks

__all__ = ["Grant", "Lock", "Locks", "Observer"] + _errors.__all__

T = TypeVar("T")

# The shortest time between two cancellations of a block.
SHORTEST_CUT_SECONDS = 0.002


class Grant(GrantBase):
    """A grant of a lock. ``async with grant:`` releases it at the end of the block.

    If the lock is lost, the block's task is cancelled, and the block raises ``LockLost``. Every
    call returns within the command timeout, or raises ``Unavailable``.
    """

    # The task in the guarded block.
    _body: asyncio.Task[Any] | None = None
    # The number of times that the loss has cancelled the block.
    _cuts = 0

    async def release(self) -> bool:
        """Release the lock. Return False if it had been lost.

        :raises NotHeld: the grant was released before.
        :raises Unavailable: no server could be asked. The library goes on trying in the background,
            and the lock ends with its lease at the latest.
        """
        return await self._hold.release()

    async def extend(self, lease: float) -> bool:
        """Let the lease end in ``lease`` seconds, or later. Return False if the lock was lost.

        Later renewals use the new length.
        """
        return await self._hold.extend(lease)

    async def owned(self) -> bool:
        """Ask the server. Return True if this grant holds all its keys."""
        return await self._hold.is_owned()

    async def __aenter__(self) -> Grant:
        self._refuse_released()
        if self.lost:
            await self._exit(None)
        self._body = asyncio.current_task()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        body, self._body = self._body, None
        is_lost, others = self._cuts > 0 and kind is asyncio.CancelledError, 0
        if body is not None and hasattr(body, "uncancel"):
            for _ in range(self._cuts):
                # Cancellations by others remain.
                others = body.uncancel()
        is_lost = is_lost and others == 0
        await self._exit(None if is_lost else error)
        if is_lost:
            # The block has released the lock by itself.
            raise LockLost("the lock was lost before it was released")

    def _tell_lost(self) -> None:
        super()._tell_lost()
        # Later, because the block may have found the loss itself, and may end before.
        left = self._hold.options.margin_seconds
        asyncio.get_running_loop().call_soon(self._cut_short, left)

    def _cut_short(self, left: float) -> None:
        """Cancel the block, again and again until the margin is over: before Python 3.12
        ``asyncio.wait_for``, which redis-py uses, may swallow a cancellation."""
        if self._body is not None:
            self._cuts += 1
            self._body.cancel()
            if left > SHORTEST_CUT_SECONDS:
                asyncio.get_running_loop().call_later(left / 2, self._cut_short, left / 2)


class Lock(LockBase[Grant]):
    """A lock on one key or several. Made by ``Locks.lock``. All tasks may share it."""

    _grant_class = Grant

    async def acquire(self, timeout: float | None = None) -> Grant | None:
        """Return a grant, or None if somebody else has the lock until the time is over.

        :param timeout: the longest wait in seconds, 0 or more; 0 tries once. Default: None, the
            lock's ``wait``, which is without a limit by default.
        :raises Unavailable: no server could be asked until the time was over.
        """
        return await self._acquire(timeout)

    async def try_acquire(self) -> Grant | None:
        """Return a grant, or None if somebody else has the lock now."""
        return await self.acquire(0)

    async def locked(self) -> bool:
        """Return True if any owner holds one of the keys."""
        return await self._is_locked()

    async def __aenter__(self) -> Grant:
        grant = await self.acquire()
        if grant is not None:
            await grant.__aenter__()
        return self._enter(grant)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._left().__aexit__(kind, error, trace)


class Locks(LocksBase[Lock, Grant]):
    """A factory of locks over a client of ``redis.asyncio``, also of a cluster or of Sentinel."""

    _lock_class = Lock
    _client_classes = (Redis, RedisCluster)
    _io_class = Tasks

    async def adopt(
        self, keys: Key | Sequence[Key], token: str | bytes, fence: int, **options: Any
    ) -> Grant | None:
        """Return a grant that another process acquired and detached, or None if it has ended.

        :param options: those of ``lock``.
        """
        return await self._adopt(keys, token, fence, options)

    async def once(
        self,
        keys: Key | Sequence[Key],
        read: Callable[[], Awaitable[T | None]],
        compute: Callable[[], Awaitable[T]],
        **options: Any,
    ) -> T:
        """Return ``read()``, or if that is None ``compute()``: one caller computes at a time.

        The others wait, and then read all at once. So ``compute`` must store its result where
        ``read`` finds it.

        :param options: those of ``lock``, except ``shared``, ``limit`` and ``permits``.
        :raises NotAcquired: the ``wait`` of the options was over before there was a result.
        """
        lock, readers = self.lock(keys, **options), self.lock(keys, shared=True, **options)
        result = await read()
        if result is not None:
            return result
        grant = await lock.try_acquire()
        if grant is None:
            async with readers:
                result = await read()
            if result is not None:
                return result
        # If the one that computed failed, the others take turns.
        async with grant or lock:
            result = await read()
            return await compute() if result is None else result

    async def release_all(self) -> int:
        """Release all grants of this object's locks. Return how many still held."""
        return await self._release_all()

    async def aclose(self) -> None:
        """Close the connections. Held locks stay held."""
        await self._close()
