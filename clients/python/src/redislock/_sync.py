"""Locks for threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

import redis
from redis.cluster import RedisCluster

from ._errors import LockLost
from ._grant import HELD, GrantBase
from ._locks import LockBase, LocksBase
from ._options import Key
from ._threads import Threads, run

T = TypeVar("T")


class Grant(GrantBase):
    """A grant of a lock. ``with grant:`` releases it at the end of the block.

    Whoever has the grant may extend or release it, in any thread. Every call returns within the
    command timeout, or raises ``Unavailable``.
    """

    # The holds of the thread that acquired a reentrant lock.
    _holds = 1

    def release(self) -> bool:
        """Release the lock. Return False if it had been lost.

        :raises NotHeld: the grant was released before.
        :raises Unavailable: no server could be asked. The library goes on trying in the background,
            and the lock ends with its lease at the latest.
        """
        if self._holds > 1:
            self._holds -= 1
            return not self.lost
        return run(self._hold.release())

    def extend(self, lease: float) -> bool:
        """Let the lease end in ``lease`` seconds, or later. Return False if the lock was lost.

        Later renewals use the new length.
        """
        return run(self._hold.extend(lease))

    def owned(self) -> bool:
        """Ask the server. Return True if this grant holds all its keys."""
        return run(self._hold.is_owned())

    def __enter__(self) -> Grant:
        self._refuse_released()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._holds > 1:
            self._holds -= 1
            if self.lost and error is None:
                raise LockLost("the lock was lost before it was released")
            return
        run(self._exit(error))


class Lock(LockBase[Grant]):
    """A lock on one key or several. Made by ``Locks.lock``. All threads may share it."""

    _grant_class = Grant
    _locks: Locks

    def acquire(
        self, timeout: float | None = None, *, cancel: threading.Event | None = None
    ) -> Grant | None:
        """Return a grant, or None if somebody else has the lock until the time is over.

        :param timeout: the longest wait in seconds, 0 or more; 0 tries once. Default: None, the
            lock's ``wait``, which is without a limit by default.
        :param cancel: an event that ends the wait with ``Cancelled`` when another thread sets it.
            Default: None.
        :raises Unavailable: no server could be asked until the time was over.
        """
        if not self._options.reentrant:
            return run(self._acquire(timeout, cancel))
        grants, it = self._locks._grants_of_thread(), self._options
        # A grant of a reader is none for a writer.
        kind = it.keys, it.shared, it.limit, it.permits
        grant: Grant | None = grants.get(kind)
        if grant is None or (grant._hold.state != HELD and not grant.lost):
            grant = run(self._acquire(timeout, cancel))
            if grant is not None:
                grants[kind] = grant
        elif grant.lost:
            raise LockLost("the lock was lost before it was acquired again")
        else:
            grant._holds += 1
        return grant

    def try_acquire(self) -> Grant | None:
        """Return a grant, or None if somebody else has the lock now."""
        return self.acquire(0)

    def locked(self) -> bool:
        """Return True if any owner holds one of the keys."""
        return run(self._is_locked())

    def __enter__(self) -> Grant:
        return self._enter(self.acquire())

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._left().__exit__(kind, error, trace)


class Locks(LocksBase[Lock, Grant]):
    """A factory of locks over a ``redis.Redis``, a ``RedisCluster`` or a client of Sentinel."""

    _lock_class = Lock
    _client_classes = (redis.Redis, RedisCluster)
    _io_class = Threads

    def adopt(
        self, keys: Key | Sequence[Key], token: str | bytes, fence: int, **options: Any
    ) -> Grant | None:
        """Return a grant that another process acquired and detached, or None if it has ended.

        :param options: those of ``lock``.
        """
        return run(self._adopt(keys, token, fence, options))

    def once(
        self,
        keys: Key | Sequence[Key],
        read: Callable[[], T | None],
        compute: Callable[[], T],
        **options: Any,
    ) -> T:
        """Return ``read()``, or if that is None ``compute()``: one caller computes at a time.

        The others wait, and then read all at once. So ``compute`` must store its result where
        ``read`` finds it.

        :param options: those of ``lock``, except ``shared``, ``limit`` and ``permits``.
        :raises NotAcquired: the ``wait`` of the options was over before there was a result.
        """
        lock, readers = self.lock(keys, **options), self.lock(keys, shared=True, **options)
        result = read()
        if result is not None:
            return result
        grant = lock.try_acquire()
        if grant is None:
            with readers:
                result = read()
            if result is not None:
                return result
        # If the one that computed failed, the others take turns.
        with grant or lock:
            result = read()
            return compute() if result is None else result

    def release_all(self) -> int:
        """Release all grants of this object's locks. Return how many still held."""
        return run(self._release_all())

    def close(self) -> None:
        """Close the connections. Held locks stay held."""
        run(self._close())

    def _grants_of_thread(self) -> Any:
        """Return the reentrant grants of this thread by their keys and kinds."""
        local = self._io.local
        if not hasattr(local, "grants"):
            local.grants = weakref.WeakValueDictionary()
        return local.grants
