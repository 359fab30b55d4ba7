"""Locks for threads."""

from typing import Any, Optional

from ._lock import LockBase, LocksBase
from ._request import SETTLE_SECONDS
from ._threads import Threads, run


class Lock(LockBase):
    """A lock that all users of the same keys share.

    The thread that acquired it may acquire it again, and releases it as often. Another thread that
    uses this object waits until then.
    """

    def acquire(self, blocking: bool = True, timeout: Optional[float] = -1) -> Optional[int]:
        """Return the fence, or None if the lock isn't granted in time. No time limit by default."""
        return run(self._acquire(blocking, timeout))

    def release(self) -> bool:
        """Release one hold; the last frees the lock. Return True if this thread still held it."""
        return run(self._release())

    def cancel(self) -> None:
        """Cancel the waits of all threads in acquire() of this object, which raises Cancelled."""
        run(self._cancel())

    def extend(self, lease: float) -> bool:
        """Set the remaining lease, in seconds. Return True if the lock was still held."""
        return run(self._extend(lease))

    def left(self) -> float:
        """Return the remaining lease on the server in seconds, or 0 if the lock isn't held."""
        return run(self._left())

    def locked(self) -> bool:
        """Return True if any owner holds one of the keys."""
        return run(self._is_locked())

    def __enter__(self) -> "Lock":
        run(self._enter())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        run(self._exit(error))

    async def _cancel(self) -> None:
        with self._state:
            self._cancels += 1
            asked = self._asked
            if asked is not None:
                asked.given_up = True
            self._state.notify_all()
        while asked is not None and self._asked is asked:
            await self._call(self._request.cancel())
            with self._state:
                await self._state.until(lambda: self._asked is not asked, SETTLE_SECONDS)


class Locks(LocksBase[Lock]):
    """A factory of locks over a ``redis.Redis``, a ``RedisCluster`` or a client of Sentinel."""

    _lock_class = Lock

    def __init__(self, client: Any) -> None:
        super().__init__(client, Threads())

    def close(self) -> None:
        """Close the idle connections. Held locks stay held."""
        run(self.connections.close())
