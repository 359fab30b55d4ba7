"""Locks for threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

import redis
from redis.cluster import RedisCluster

from ._errors import LockLost, NotAcquired
from ._grant import HELD, GrantBase
from ._locks import LockBase, LocksBase
from ._observer import Observer
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
    # True if the thread that holds the lock may acquire it again.
    _is_reentrant = False

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
        if not self._is_reentrant:
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

    def __init__(
        self, client: Any, *, command_timeout: float = 1.0, observer: Observer | None = None
    ) -> None:
        """Make it with the client's settings. Nothing connects before the first command.

        :param command_timeout: the longest time, in seconds, of each call that doesn't wait for a
            lock, with connecting and sending again; more than 0. Default: 1.
        :param observer: hooks for logs and metrics. Default: None, which logs outages.
        """
        super().__init__(client, Threads(), command_timeout, observer)
        self._thread = threading.local()

    def lock(
        self, keys: Key | Sequence[Key], lease: float = 30.0, *, reentrant: bool = False,
        **options: Any,
    ) -> Lock:  # fmt: skip
        """Return a lock, with the options of ``LocksBase.lock`` and one more.

        :param reentrant: True if the thread that holds the lock may acquire it again, and releases
            it as often. All reentrant locks of one kind on the same keys count together. Default:
            False.
        """
        lock = super().lock(keys, lease, **options)
        lock._is_reentrant = bool(reentrant)
        return lock

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
            # The one that computed failed, so the others take turns.
            grant = lock.acquire()
        if grant is None:
            raise NotAcquired("somebody else had the lock all the time")
        with grant:
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
        if not hasattr(self._thread, "grants"):
            self._thread.grants = weakref.WeakValueDictionary()
        return self._thread.grants
