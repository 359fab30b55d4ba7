"""The logic of locks, written once for threads and for tasks.

Every method that takes time is a coroutine. A task awaits it. A thread runs it to its end with
``_threads.run``, and is blocked meanwhile. Differences between the two are in ``io``: see
``Threads`` and ``Tasks``.
"""

import math
import os
import time
import weakref
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Generic, List, Optional, Sequence, Type, TypeVar, Union

from ._connections import Connections, Io, Kept
from ._errors import Cancelled, LockLost, NotAcquired, final, is_of_another_type
from ._grant import Grant, limit_of
from ._request import (
    CLEANUP_SECONDS,
    GRACE_SECONDS,
    SETTLE_SECONDS,
    Key,
    Request,
    Words,
    is_free,
    new_token,
    pauses,
)

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class LockBase:
    """A lock that all users of the same keys share. Its owner is a thread or a task."""

    _locks: "LocksBase[Any]"
    _new_request: Callable[[], Request]
    _lease: float
    _wait: Optional[float]
    _renew: bool
    _on_lost: Optional[Callable[[Any], Any]]

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Start without a grant, also in a forked process, because the parent owns the grant."""
        self._io = self._locks.io
        self._connections = self._locks.connections
        self._state = self._io.condition()
        self._request = self._new_request()
        self._owner: Any = None
        self._grant: Optional[Grant] = None
        self._lost = False
        # The grant that the owner requests while it is in acquire().
        self._asked: Optional[Grant] = None
        # The count of cancel() calls, each of which cancels all waits.
        self._cancels = 0
        # True if a command was sent whose reply wasn't read.
        self._unsure = False

    @property
    def token(self) -> Union[str, bytes]:
        """The token, which names this owner to the server."""
        return self._request.token

    @property
    def fence(self) -> Optional[int]:
        """The fence of the grant, greater than the fence of every earlier grant."""
        grant = self._grant
        return None if grant is None else grant.fence

    @property
    def lost(self) -> bool:
        """True if the last grant ended before its release."""
        grant = self._grant
        return self._lost or (grant is not None and grant.is_over)

    # --- calls ------------------------------------------------------------------------------------

    async def _acquire(self, blocking: bool, timeout: Optional[float]) -> Optional[int]:
        limit = limit_of(blocking, timeout)
        with self._state:
            if not await self._my_turn(limit):
                return None
            held = self._grant
            if held is not None and held.is_over:
                self._put_away(held)
                held = None
            self._owner = self._io.me()
            grant = Grant(Kept(self._io), 1) if held is None else Grant(held.kept, held.holds + 1)
            self._asked = grant
        try:
            granted = await self._ask(grant, limit)
        except BaseException:
            await self._io.finish(self._withdraw(grant))
            raise
        await self._leave(grant)
        return grant.fence if granted else None

    async def _release(self) -> bool:
        with self._state:
            grant = self._grant
            if grant is None or self._owner is not self._io.me():
                return False
            if grant.is_over:
                self._lose(grant)
            grant.holds -= 1
            if grant.holds == 0:
                self._forget(grant)
        return await self._io.finish(self._give_back(grant))

    async def _extend(self, lease: float) -> bool:
        grant = self._grant
        return grant is not None and await self._prolong(grant, lease)

    async def _left(self) -> float:
        left_ms = min(await self._of_each_key("LOCK.CHECK", self.token))
        return float(left_ms) / 1000

    async def _is_locked(self) -> bool:
        infos = await self._of_each_key("LOCK.INFO", "WAITERS", 0)
        return not all(is_free(info) for info in infos)

    async def _enter(self) -> None:
        if await self._acquire(True, self._wait) is None:
            raise NotAcquired("the lock wasn't to be had")

    async def _exit(self, error: Optional[BaseException]) -> None:
        if not await self._release() and error is None:
            raise LockLost("the lock was lost before it was released")

    # --- asking for it ----------------------------------------------------------------------------

    async def _my_turn(self, limit: float) -> bool:
        """Wait until no other owner uses this object. The caller holds the state's mutex."""
        cancels = self._cancels

        def is_it() -> bool:
            if self._owner is None or self._owner is self._io.me() or self._cancels != cancels:
                return True
            # An owner that is still releasing an expired grant keeps its turn, because its token
            # must not be used meanwhile.
            held = None if self._asked else self._grant
            return held is not None and held.is_over and not held.given_back

        came = await self._state.until(is_it, limit - time.monotonic())
        if self._cancels != cancels:
            raise Cancelled("the wait was given up")
        return came

    async def _ask(self, grant: Grant, limit: float) -> bool:
        """Request the lock. Return True if it was granted and is held."""

        async def ask() -> bool:
            self._unsure = True
            try:
                return await self._ask_once(grant, limit)
            except Exception as error:
                self._unsure = final(error) is None
                raise

        granted = await self._retry(ask, limit, lambda: grant.given_up)
        if granted:
            self._hold(grant)
        self._unsure = False
        return granted

    async def _ask_once(self, grant: Grant, limit: float) -> bool:
        """Request the lock once. Confirm the grant after a long wait, because it may be over."""
        request, lease, holds = self._request, self._lease, grant.holds
        while True:
            asked_at = time.monotonic()
            left = limit - asked_at
            if left > 0:
                words = request.wait(lease, holds, left)
                answer = await self._call(words, grant.kept, left + GRACE_SECONDS)
            else:
                answer = await self._call(request.acquire(lease, holds), grant.kept)
            if answer is None:
                return False
            grant.fence = int(answer[1])
            grant.prolong(lease, asked_at)
            if time.monotonic() < grant.renew_at or await self._set_lease(grant, lease):
                return True

    def _hold(self, grant: Grant) -> None:
        held = self._grant
        if held is not None and held.fence != grant.fence:
            self._lose(held)
            raise LockLost("the lock was lost before it was acquired again")
        with self._state:
            if held is not None:
                self._forget(held)
            self._grant, self._lost = grant, False
        self._watch(grant)

    async def _withdraw(self, grant: Grant) -> None:
        """End the wait, and release a grant that was not received, if the server can be reached."""
        held = self._grant
        holds = 0 if held is None or held.is_over else held.holds
        cancel, release = self._request.cancel(), self._request.release(holds)
        until = time.monotonic() + CLEANUP_SECONDS
        try:
            for _ in range(2 if self._unsure else 0):
                if await self._retry(lambda: self._call(cancel), until):
                    return
                await self._io.sleep(SETTLE_SECONDS)
            if self._unsure:
                await self._retry(lambda: self._call(release), until)
        except Exception:
            return  # The caller gets the error that led here.
        finally:
            await self._leave(grant)

    async def _leave(self, grant: Grant) -> None:
        held = self._grant
        if held is None or held.kept is not grant.kept:
            await self._connections.give_back(grant.kept)
        with self._state:
            self._asked = None
            if self._grant is None:
                self._owner = None
            self._state.notify_all()

    # --- what becomes of it -----------------------------------------------------------------------

    async def _give_back(self, grant: Grant) -> bool:
        words = self._request.release(grant.holds)
        was_over = grant.is_over
        # After a loss, release the remaining keys, but with a single try.
        until = -math.inf if was_over else grant.ends_at
        key, own = self._request.key, Kept(self._io)
        # A session releases on its own connection. A lost reply is then no sign of a release,
        # because the session ends with that connection.
        kept = grant.kept if self._request.session else own
        try:
            count = await self._retry(lambda: self._connections.call_on(kept, key, words), until)
            # If a reply was lost, the command before may have released the lock.
            released = own.unanswered and grant.holds == 0
            return (count == len(self._request.keys) or released) and not grant.is_over
        except BaseException as error:
            if isinstance(error, Exception) and (was_over or is_of_another_type(error)):
                return False
            # The RELEASE may reach the server later. A new token keeps it from ending a later
            # grant.
            self._request = self._new_request()
            raise
        finally:
            await self._connections.give_back(own)
            if grant.holds == 0:
                await self._connections.give_back(grant.kept)
                self._let_go()

    def _let_go(self) -> None:
        """Forget the grant and its owner."""
        with self._state:
            if self._grant is not None:
                self._forget(self._grant)
            self._grant = self._owner = None
            self._state.notify_all()

    def _watch(self, grant: Grant) -> None:
        when = min(grant.renew_at, grant.ends_at) if self._renew else grant.ends_at
        with self._state:
            if not grant.given_back:
                grant.cancel_alarm()
                grant.cancel_alarm = self._io.at(when, lambda: self._look_after(grant))

    def _forget(self, grant: Grant) -> None:
        grant.given_back = True
        grant.cancel_alarm()

    def _look_after(self, grant: Grant) -> None:
        if grant.given_back or grant.lost:
            return
        now = time.monotonic()
        if now >= grant.ends_at:
            self._lose(grant)
            return
        if self._renew and now >= grant.renew_at:
            grant.renew_at = math.inf
            self._io.start(self._renew_in_background(grant))
        self._watch(grant)

    async def _renew_in_background(self, grant: Grant) -> None:
        try:
            await self._prolong(grant, grant.lease)
        except Exception:
            # A permission that was revoked may be given again before the lease ends.
            grant.renew_at = time.monotonic() + grant.lease / 10
            self._watch(grant)

    async def _prolong(self, grant: Grant, lease: float) -> bool:
        async def set_lease() -> bool:
            if grant.is_over or grant.given_back:
                return False
            return await self._set_lease(grant, lease)

        try:
            renewed = await self._retry(set_lease, grant.ends_at, lambda: grant.given_back)
            if renewed and not grant.lost:
                self._watch(grant)
                return True
        except Exception as error:
            if not (grant.is_over or grant.given_back or is_of_another_type(error)):
                raise
        self._lose(grant)
        return False

    async def _set_lease(self, grant: Grant, lease: float) -> bool:
        asked_at = time.monotonic()
        answer = await self._call(self._request.extend(lease), grant.kept)
        if answer != len(self._request.keys):
            return False
        grant.prolong(lease, asked_at)
        return True

    def _lose(self, grant: Grant) -> None:
        with self._state:
            if grant.given_back or grant.lost:
                return
            grant.lost = self._lost = True
            self._state.notify_all()
        if self._on_lost is not None:
            self._io.tell(self._on_lost, self)

    def _put_away(self, grant: Grant) -> None:
        """Forget a grant that is over and was never released."""
        self._lose(grant)
        self._io.start(self._connections.close_kept(grant.kept))
        self._let_go()

    # --- commands ---------------------------------------------------------------------------------

    async def _call(
        self, words: Words, kept: Optional[Kept] = None, seconds: Optional[float] = None
    ) -> Any:
        """Send a command, and return its reply. A session's command uses the grant's connection."""
        if kept is None or not self._request.session:
            return await self._connections.call(self._request.key, words, seconds)
        return await self._connections.call_on(kept, self._request.key, words, seconds)

    async def _of_each_key(self, command: str, *words: Any) -> List[Any]:
        return [await self._call((command, key, *words)) for key in self._request.keys]

    async def _retry(
        self,
        act: Callable[[], Awaitable[T]],
        until: float,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> T:
        """Repeat an action until it succeeds, its error is final, or the time is over."""
        for pause in pauses():
            try:
                return await act()
            except Exception as error:
                raised = final(error)
                if raised is not None:
                    raise raised from None
                left = until - time.monotonic()
                if left <= 0 or not self._connections.reached:
                    raise
            with self._state:
                if await self._state.until(is_given_up, min(pause, left)):
                    raise Cancelled("the wait was given up")
        raise AssertionError("there is always another try")


L = TypeVar("L", bound=LockBase)


class LocksBase(Generic[L]):
    """A factory of locks with the settings of a client."""

    _lock_class: Type[L]

    def __init__(self, client: Any, io: Io) -> None:
        self.io = io
        self.connections = Connections(client, io)
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
        """Return a lock on a key, or on several keys that are granted together or not at all.

        Times are in seconds. ``wait`` is the time limit of ``with``; None sets no limit.
        """
        names = (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)

        def request() -> Request:
            return Request(names, token or new_token(), shared, limit, permits, session, keep)

        lock = self._lock_class(self, request, lease, wait, renew, on_lost)
        self._made.add(lock)
        return lock

    def _forked(self) -> None:
        self.io.forget()
        self.connections.forget()
        for lock in list(self._made):
            lock._begin()


_ALL: "weakref.WeakSet[LocksBase[Any]]" = weakref.WeakSet()


def _forked() -> None:
    for locks in list(_ALL):
        locks._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
