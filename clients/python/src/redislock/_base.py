"""What locks for threads and locks for tasks have in common."""

import os
import weakref
from typing import Any, Callable, Generic, Optional, Sequence, Type, TypeVar, Union

from ._grant import Grant
from ._request import Key, Request, new_token


class LockBase:
    """A lock that is shared by all who name the same keys."""

    def __init__(
        self,
        locks: Any,
        new_request: Callable[[], Request],
        lease: float,
        wait: Optional[float],
        renew: bool,
        on_lost: Optional[Callable[[Any], Any]],
    ) -> None:
        self._locks = locks
        self._new_request = new_request
        self._lease = lease
        self._wait = wait
        self._renew = renew
        self._on_lost = on_lost
        self._begin()

    def _begin(self) -> None:
        """Begins anew, as in a process that was forked: what was granted is the other's."""
        self._request = self._new_request()
        self._owner: Any = None
        self._grant: Optional[Grant] = None
        self._lost = False
        self._fence: Optional[int] = None
        self._asking = False

    @property
    def token(self) -> Union[str, bytes]:
        """Who this is to the server."""
        return self._request.token

    @property
    def fence(self) -> Optional[int]:
        """The number of the grant that is held, greater than that of any before."""
        return self._fence

    @property
    def lost(self) -> bool:
        """Whether the last grant ended before it was released."""
        grant = self._grant
        return self._lost or (grant is not None and grant.is_over)


L = TypeVar("L", bound=LockBase)


class LocksBase(Generic[L]):
    """Makes locks with the settings of a client."""

    _lock_class: Type[L]
    connections: Any

    def __init__(self) -> None:
        self._made: "weakref.WeakSet[L]" = weakref.WeakSet()
        _ALL.add(self)

    def lock(
        self,
        keys: Union[Key, Sequence[Key]],
        lease: float = 30.0,
        *,
        wait: Optional[float] = None,
        token: Union[str, bytes, None] = None,
        shared: bool = False,
        limit: Optional[int] = None,
        permits: Optional[int] = None,
        session: bool = False,
        keep: float = 10.0,
        renew: bool = True,
        on_lost: Optional[Callable[[L], Any]] = None,
    ) -> L:
        """A lock for a key, or for several that are had all or none. Times are in seconds.

        ``wait`` is how long ``with`` waits; for ever without.
        """
        names = (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)

        def request() -> Request:
            return Request(names, token or new_token(), shared, limit, permits, session, keep)

        lock = self._lock_class(self, request, lease, wait, renew, on_lost)
        self._made.add(lock)
        return lock

    def _forked(self) -> None:
        self.connections.forget()
        for lock in list(self._made):
            lock._begin()


_ALL: "weakref.WeakSet[LocksBase[Any]]" = weakref.WeakSet()


def _forked() -> None:
    for locks in list(_ALL):
        locks._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
