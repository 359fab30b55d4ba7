"""Locks for threads."""

from typing import Any, Optional

from ._lock import LockBase, LocksBase
from ._request import SETTLE_SECONDS
from ._threads import Threads, run


class Lock(LockBase):
    """A lock that is shared by all who name the same keys.

    The thread that acquired it may acquire it again, and releases it as often. Another thread that
    shares this object waits until then.
    """

    def acquire(self, blocking: bool = True, timeout: Optional[float] = -1) -> Optional[int]:
        """The fence, or None where the lock wasn't to be had in time. Waits for ever by default."""
        return run(self._acquire(blocking, timeout))

    def release(self) -> bool:
        """Takes back one acquire(); the last one frees the lock. Whether this thread still held it."""
        return run(self._release())

    def cancel(self) -> None:
        """Gives up the waits of all threads in acquire() of this object. They raise Cancelled."""
        run(self._cancel())

    def extend(self, lease: float) -> bool:
        """Sets what is left of the lease, in seconds. Whether the lock was still held."""
        return run(self._extend(lease))

    def left(self) -> float:
        """The seconds left of the lease, by the server; 0 where the lock isn't held."""
        return run(self._left())

    def locked(self) -> bool:
        """Whether anybody holds one of the keys."""
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
    """Makes locks with the settings of a client: ``redis.Redis``, ``RedisCluster`` or one by Sentinel."""

    _lock_class = Lock

    def __init__(self, client: Any) -> None:
        super().__init__(client, Threads())

    def close(self) -> None:
        """Closes connections that nobody uses. What is held stays so."""
        run(self.connections.close())
