"""Locks for threads."""

import math
import os
import threading
import time
import weakref
from typing import Any, Callable, Optional, Sequence, Union

from ._clock import Clock
from ._connections import Connections, Kept
from ._errors import Cancelled, LockLost, NotAcquired, final, is_of_another_type
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


class Grant:
    """What a lock has been granted. Times are those of the monotonic clock."""

    def __init__(self, fence: int, lease: float, kept: Kept, asked_at: float) -> None:
        self.fence = fence
        self.kept = kept
        self.holds = 0
        self.lost = False
        self.given_back = False
        self.prolong(lease, asked_at)

    def prolong(self, lease: float, asked_at: float) -> None:
        """The server counts from when it was asked, or later."""
        self.lease = lease
        self.ends_at = asked_at + lease
        self.renew_at = asked_at + lease / 3

    @property
    def is_over(self) -> bool:
        return self.lost or time.monotonic() >= self.ends_at


class Lock:
    """A lock that is shared by all who name the same keys.

    The thread that acquired it may acquire it again, and releases it as often. Another thread that
    shares this object waits until then.
    """

    def __init__(
        self,
        locks: "Locks",
        new_request: Callable[[], Request],
        lease: float,
        renew: bool,
        on_lost: Optional[Callable[["Lock"], Any]],
    ) -> None:
        self._locks = locks
        self._new_request = new_request
        self._lease = lease
        self._renew = renew
        self._on_lost = on_lost
        self._begin()

    def _begin(self) -> None:
        """Begins anew, as in a process that was forked: what was granted is the other's."""
        self._request = self._new_request()
        self._state = threading.Condition()
        self._owner: Optional[threading.Thread] = None
        self._grant: Optional[Grant] = None
        self._lost = False
        self._fence: Optional[int] = None
        self._asking = False
        # How often cancel() was called.
        self._cancels = 0

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

    def acquire(self, blocking: bool = True, timeout: Optional[float] = -1) -> Optional[int]:
        """The fence, or None where the lock wasn't to be had in time. Waits for ever by default."""
        if not blocking:
            limit = -math.inf
        elif timeout is None or timeout < 0:
            limit = math.inf
        else:
            limit = time.monotonic() + timeout
        with self._state:
            cancels = self._cancels
            if not self._my_turn(limit, cancels):
                return None
            self._owner = threading.current_thread()
            self._asking = True
            self._asking_since = cancels
            if self._grant is not None and self._grant.is_over:
                self._put_away(self._grant)
        try:
            return self._ask(limit, cancels)
        finally:
            with self._state:
                self._asking = False
                if self._grant is None:
                    self._owner = None
                self._state.notify_all()

    def release(self) -> bool:
        """Takes back one acquire(); the last one frees the lock. Whether this thread still held it."""
        with self._state:
            grant = self._grant
            if grant is None or self._owner is not threading.current_thread():
                return False
            if grant.is_over:
                self._lose(grant)
            grant.holds -= 1
            if grant.holds == 0:
                grant.given_back = True
        try:
            return self._take_back(grant)
        except BaseException:
            # It may reach the server later, and must not end what is granted by then.
            self._request = self._new_request()
            raise
        finally:
            if grant.holds == 0:
                self._locks.connections.give_back(grant.kept)
                with self._state:
                    self._grant = self._owner = self._fence = None
                    self._state.notify_all()

    def cancel(self) -> None:
        """Gives up the waits of all threads in acquire() of this object. They raise Cancelled."""
        with self._state:
            self._cancels += 1
            self._state.notify_all()
            cancels = self._cancels
        while True:
            with self._state:
                if not self._asking or self._asking_since == cancels:
                    return
            self._call(self._request.cancel())
            with self._state:
                self._state.wait_for(lambda: not self._asking, SETTLE_SECONDS)

    def extend(self, lease: float) -> bool:
        """Sets what is left of the lease, in seconds. Whether the lock was still held."""
        grant = self._grant
        if grant is None or grant.is_over:
            return False
        return self._prolong(grant, lease)

    def left(self) -> float:
        """The seconds left of the lease, by the server; 0 where the lock isn't held."""
        checks = (self._call(("LOCK.CHECK", key, self.token)) for key in self._request.keys)
        return min(checks) / 1000

    def locked(self) -> bool:
        """Whether anybody holds one of the keys."""
        infos = (self._call(("LOCK.INFO", key, "WAITERS", 0)) for key in self._request.keys)
        return not all(is_free(info) for info in infos)

    def __enter__(self) -> "Lock":
        if self.acquire() is None:
            raise NotAcquired("the lock wasn't to be had")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.release() and error is None:
            raise LockLost("the lock was lost before it was released")

    # --- asking for it ------------------------------------------------------------------------------

    def _my_turn(self, limit: float, cancels: int) -> bool:
        """Waits until no other thread uses this object. The caller has the state."""

        def is_it() -> bool:
            free = self._owner is None or (
                not self._asking and self._grant is not None and self._grant.is_over
            )
            mine = self._owner is threading.current_thread()
            return free or mine or self._cancels != cancels

        left = None if limit == math.inf else max(0.0, limit - time.monotonic())
        came = self._state.wait_for(is_it, left)
        if self._cancels != cancels:
            raise Cancelled("the wait was given up")
        return came

    def _ask(self, limit: float, cancels: int) -> Optional[int]:
        grant = self._grant
        holds = 1 if grant is None else grant.holds + 1
        kept = Kept() if grant is None else grant.kept
        for pause in pauses():
            asked_at = time.monotonic()
            try:
                answer = self._ask_once(kept, holds, limit - asked_at)
                if answer is None:
                    self._finish(kept)
                    return None
                if self._granted(int(answer[1]), holds, kept, asked_at):
                    return self._fence
            except Exception as error:
                raised = final(error)
                if raised is not None:
                    self._finish(kept)
                    raise raised from None
                if time.monotonic() >= limit or not self._locks.connections.reached:
                    self._withdraw(holds - 1)
                    raise
                with self._state:
                    self._state.wait_for(lambda: self._cancels != cancels, pause)
                if self._cancels != cancels:
                    self._withdraw(holds - 1)
                    raise Cancelled("the wait was given up") from None
            except BaseException:
                self._withdraw(holds - 1)
                raise
        raise AssertionError("there is always another try")

    def _ask_once(self, kept: Kept, holds: int, left: float) -> Any:
        request = self._request
        if left <= 0:
            return self._call_on(kept, request.acquire(self._lease, holds))
        words = request.wait(self._lease, holds, left)
        return self._call_on(kept, words, left + GRACE_SECONDS)

    def _granted(self, fence: int, holds: int, kept: Kept, asked_at: float) -> bool:
        """Takes note of a grant. It may be over already where the wait was long: whether it is not."""
        grant = Grant(fence, self._lease, kept, asked_at)
        held = self._grant
        if held is not None and held.fence != fence:
            self._lose(held)
            self._withdraw(0)
            raise LockLost("the lock was lost before it was acquired again")
        if time.monotonic() >= grant.renew_at and not self._confirm(grant):
            return False
        with self._state:
            if held is not None:
                held.given_back = True
            grant.holds = holds
            self._grant, self._fence, self._lost = grant, fence, False
        if not self._request.session:
            self._locks.connections.give_back(kept)
        self._watch(grant)
        return True

    def _confirm(self, grant: Grant) -> bool:
        asked_at = time.monotonic()
        if self._call_on(grant.kept, self._request.extend(grant.lease)) != len(self._request.keys):
            return False
        grant.prolong(grant.lease, asked_at)
        return True

    def _withdraw(self, holds_before: int) -> None:
        """Leaves neither a wait nor a grant that nobody knows of, as far as the server can be reached."""
        until = time.monotonic() + CLEANUP_SECONDS
        try:
            for _ in range(2):
                if self._persist(self._request.cancel(), until):
                    return
                time.sleep(SETTLE_SECONDS)
            self._persist(self._request.release(holds_before), until)
        except Exception:
            return  # What brought us here is what the caller is told.

    # --- what becomes of it -------------------------------------------------------------------------

    def _take_back(self, grant: Grant) -> bool:
        words = self._request.release(grant.holds)
        count = len(self._request.keys)
        # Who lost it still frees what is left of it, but doesn't insist.
        until = -math.inf if grant.is_over else grant.ends_at
        try:
            return self._persist(words, until, grant.kept) == count and not grant.is_over
        except Exception as error:
            if grant.is_over or is_of_another_type(error):
                return False
            raise

    def _watch(self, grant: Grant) -> None:
        when = min(grant.renew_at, grant.ends_at) if self._renew else grant.ends_at
        self._locks.clock.at(when, lambda: self._look_after(grant))

    def _look_after(self, grant: Grant) -> None:
        if grant.given_back or grant.lost:
            return
        now = time.monotonic()
        if now >= grant.ends_at:
            self._lose(grant)
        elif self._renew and now >= grant.renew_at:
            grant.renew_at = math.inf
            self._watch(grant)
            self._locks.start(self._renew_in_background, grant)

    def _renew_in_background(self, grant: Grant) -> None:
        try:
            self._prolong(grant, grant.lease)
        except Exception:
            # A right that was taken away may be given again before the lease is over.
            grant.renew_at = time.monotonic() + grant.lease / 10
            self._watch(grant)

    def _prolong(self, grant: Grant, lease: float) -> bool:
        for pause in pauses():
            asked_at = time.monotonic()
            if asked_at >= grant.ends_at or grant.given_back:
                return False
            try:
                answer = self._call_on(grant.kept, self._request.extend(lease))
                break
            except Exception as error:
                if is_of_another_type(error):
                    answer = 0
                    break
                if final(error) is not None:
                    raise
            time.sleep(min(pause, max(0.0, grant.ends_at - time.monotonic())))
        if not self._request.session:
            self._locks.connections.give_back(grant.kept)
        if answer != len(self._request.keys) or grant.lost:
            self._lose(grant)
            return False
        grant.prolong(lease, asked_at)
        self._watch(grant)
        return True

    def _lose(self, grant: Grant) -> None:
        with self._state:
            if grant.given_back or grant.lost:
                return
            grant.lost = True
            self._lost = True
            self._state.notify_all()
        if self._on_lost is not None:
            self._locks.start(self._on_lost, self)

    def _put_away(self, grant: Grant) -> None:
        """Forgets a grant that is over and was never released. The caller has the state."""
        self._lose(grant)
        grant.given_back = True
        self._locks.connections.close_kept(grant.kept)
        self._grant = self._fence = None

    # --- commands -----------------------------------------------------------------------------------

    def _call(self, words: Words) -> Any:
        return self._locks.connections.call(self._request.key, words)

    def _call_on(self, kept: Kept, words: Words, seconds: Optional[float] = None) -> Any:
        return self._locks.connections.call_on(kept, self._request.key, words, seconds)

    def _finish(self, kept: Kept) -> None:
        if self._grant is None or self._grant.kept is not kept:
            self._locks.connections.give_back(kept)

    def _persist(self, words: Words, until: float, kept: Optional[Kept] = None) -> Any:
        """The answer to a command, sent again and again until a time."""
        mine = kept or Kept()
        try:
            for pause in pauses():
                try:
                    return self._call_on(mine, words)
                except Exception as error:
                    if final(error) is not None or time.monotonic() + pause >= until:
                        raise
                time.sleep(pause)
        finally:
            if kept is None:
                self._locks.connections.give_back(mine)


class Locks:
    """Makes locks with the settings of a client: ``redis.Redis``, ``RedisCluster`` or one by Sentinel."""

    def __init__(self, client: Any) -> None:
        self.connections = Connections(client)
        self.clock = Clock()
        self._made: "weakref.WeakSet[Lock]" = weakref.WeakSet()
        _ALL.add(self)

    def lock(
        self,
        keys: Union[Key, Sequence[Key]],
        lease: float = 30.0,
        *,
        token: Union[str, bytes, None] = None,
        shared: bool = False,
        limit: Optional[int] = None,
        permits: Optional[int] = None,
        session: bool = False,
        keep: float = 10.0,
        renew: bool = True,
        on_lost: Optional[Callable[[Lock], Any]] = None,
    ) -> Lock:
        """A lock for a key, or for several that are had all or none. Times are in seconds."""
        names = (keys,) if isinstance(keys, (str, bytes)) else tuple(keys)

        def request() -> Request:
            return Request(names, token or new_token(), shared, limit, permits, session, keep)

        lock = Lock(self, request, lease, renew, on_lost)
        self._made.add(lock)
        return lock

    def close(self) -> None:
        """Closes connections that nobody uses. What is held stays so."""
        self.connections.close()

    def start(self, act: Callable[..., Any], *args: Any) -> None:
        """Has something done that may take its time."""
        threading.Thread(target=act, args=args, name="redislock", daemon=True).start()

    def _forked(self) -> None:
        self.connections.forget()
        self.clock = Clock()
        for lock in list(self._made):
            lock._begin()


_ALL: "weakref.WeakSet[Locks]" = weakref.WeakSet()


def _forked() -> None:
    for locks in list(_ALL):
        locks._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
