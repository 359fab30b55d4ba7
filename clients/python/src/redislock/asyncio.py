"""Locks for the tasks of an event loop."""

import asyncio
import inspect
import math
import time
from typing import Any, Coroutine, List, Optional, Set

from ._aconnections import Connections, Kept
from ._base import LockBase, LocksBase
from ._errors import (
    Cancelled,
    Deadlock,
    LockLost,
    NotAcquired,
    RedisLockError,
    final,
    is_of_another_type,
)
from ._grant import Grant, limit_of
from ._request import (
    CLEANUP_SECONDS,
    GRACE_SECONDS,
    SETTLE_SECONDS,
    Words,
    is_free,
    pauses,
)

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

    _locks: "Locks"

    def _begin(self) -> None:
        super()._begin()
        # Whether a command was sent to whose answer nobody listened.
        self._unsure = False
        self._turns: List["asyncio.Future[None]"] = []

    async def acquire(self, blocking: bool = True, timeout: Optional[float] = -1) -> Optional[int]:
        """The fence, or None where the lock wasn't to be had in time. Waits for ever by default."""
        limit = limit_of(blocking, timeout)
        if not await self._my_turn(limit):
            return None
        self._owner = asyncio.current_task()
        self._asking = True
        if self._grant is not None and self._grant.is_over:
            self._put_away(self._grant)
        try:
            fence = await self._ask(limit)
        except BaseException:
            await self._locks.finish(self._withdraw())
            raise
        self._leave()
        return fence

    async def release(self) -> bool:
        """Takes back one acquire(); the last one frees the lock. Whether this task still held it."""
        grant = self._grant
        if grant is None or self._owner is not asyncio.current_task():
            return False
        if grant.is_over:
            self._lose(grant)
        grant.holds -= 1
        if grant.holds == 0:
            self._forget(grant)
        return bool(await self._locks.finish(self._give_back(grant)))

    async def extend(self, lease: float) -> bool:
        """Sets what is left of the lease, in seconds. Whether the lock was still held."""
        grant = self._grant
        if grant is None or grant.is_over:
            return False
        return await self._prolong(grant, lease)

    async def left(self) -> float:
        """The seconds left of the lease, by the server; 0 where the lock isn't held."""
        answers = [
            await self._call(("LOCK.CHECK", key, self.token)) for key in self._request.keys
        ]
        return float(min(answers)) / 1000

    async def locked(self) -> bool:
        """Whether anybody holds one of the keys."""
        infos = [await self._call(("LOCK.INFO", key, "WAITERS", 0)) for key in self._request.keys]
        return not all(is_free(info) for info in infos)

    async def __aenter__(self) -> "Lock":
        if await self.acquire(timeout=self._wait) is None:
            raise NotAcquired("the lock wasn't to be had")
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not await self.release() and error is None:
            raise LockLost("the lock was lost before it was released")

    # --- asking for it ------------------------------------------------------------------------------

    def _is_free(self) -> bool:
        if self._owner is None or self._owner is asyncio.current_task():
            return True
        return not self._asking and self._grant is not None and self._grant.is_over

    async def _my_turn(self, limit: float) -> bool:
        """Waits until no other task uses this object."""
        while not self._is_free():
            left = limit - time.monotonic()
            if left <= 0:
                return False
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                await asyncio.wait({turn}, timeout=None if left == math.inf else left)
            finally:
                if turn in self._turns:
                    self._turns.remove(turn)
        return True

    def _wake(self) -> None:
        turns, self._turns = self._turns, []
        for turn in turns:
            turn.set_result(None)

    def _leave(self) -> None:
        self._asking = False
        if self._grant is None:
            self._owner = None
        self._wake()

    async def _ask(self, limit: float) -> Optional[int]:
        grant = self._grant
        holds = 1 if grant is None else grant.holds + 1
        kept = Kept() if grant is None else grant.kept
        for pause in pauses():
            asked_at = time.monotonic()
            self._unsure = True
            try:
                answer = await self._ask_once(kept, holds, limit - asked_at)
                if answer is None:
                    self._unsure = False
                    if grant is None:
                        await self._locks.connections.give_back(kept)
                    return None
                if await self._granted(int(answer[1]), holds, kept, asked_at):
                    return self._fence
            except Exception as error:
                raised = final(error)
                if raised is not None:
                    self._unsure = False
                    if grant is None:
                        await self._locks.connections.give_back(kept)
                    raise raised from None
                if time.monotonic() >= limit or not self._locks.connections.reached:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("there is always another try")

    async def _ask_once(self, kept: Kept, holds: int, left: float) -> Any:
        request = self._request
        if left <= 0:
            return await self._call_on(kept, request.acquire(self._lease, holds))
        words = request.wait(self._lease, holds, left)
        return await self._call_on(kept, words, left + GRACE_SECONDS)

    async def _granted(self, fence: int, holds: int, kept: Kept, asked_at: float) -> bool:
        """Takes note of a grant. It may be over already where the wait was long: whether it is not."""
        grant = Grant(fence, self._lease, kept, asked_at)
        held = self._grant
        if held is not None and held.fence != fence:
            self._lose(held)
            await self._persist(self._request.release(0), time.monotonic() + CLEANUP_SECONDS)
            raise LockLost("the lock was lost before it was acquired again")
        if time.monotonic() >= grant.renew_at and not await self._confirm(grant):
            return False
        self._unsure = False
        if held is not None:
            self._forget(held)
        grant.holds = holds
        self._grant, self._fence, self._lost = grant, fence, False
        self._watch(grant)
        return True

    async def _confirm(self, grant: Grant) -> bool:
        asked_at = time.monotonic()
        answer = await self._call_on(grant.kept, self._request.extend(grant.lease))
        if answer != len(self._request.keys):
            return False
        grant.prolong(grant.lease, asked_at)
        return True

    async def _withdraw(self) -> None:
        """Leaves neither a wait nor a grant that nobody knows of, as far as the server can be reached."""
        holds_before = 0 if self._grant is None else self._grant.holds
        until = time.monotonic() + CLEANUP_SECONDS
        try:
            for _ in range(2 if self._unsure else 0):
                if await self._persist(self._request.cancel(), until):
                    return
                await asyncio.sleep(SETTLE_SECONDS)
            if self._unsure:
                await self._persist(self._request.release(holds_before), until)
        except Exception:
            return  # What brought us here is what the caller is told.
        finally:
            self._leave()

    # --- what becomes of it -------------------------------------------------------------------------

    async def _give_back(self, grant: Grant) -> bool:
        try:
            return await self._take_back(grant)
        except BaseException:
            # It may reach the server later, and must not end what is granted by then.
            self._request = self._new_request()
            raise
        finally:
            if grant.holds == 0:
                await self._locks.connections.give_back(grant.kept)
                self._grant = self._owner = self._fence = None
                self._wake()

    async def _take_back(self, grant: Grant) -> bool:
        words = self._request.release(grant.holds)
        count = len(self._request.keys)
        # Who lost it still frees what is left of it, but doesn't insist.
        until = -math.inf if grant.is_over else grant.ends_at
        try:
            answer = await self._persist(words, until, grant.kept)
            return bool(answer == count and not grant.is_over)
        except Exception as error:
            if grant.is_over or is_of_another_type(error):
                return False
            raise

    def _watch(self, grant: Grant) -> None:
        when = min(grant.renew_at, grant.ends_at) if self._renew else grant.ends_at
        loop = asyncio.get_running_loop()
        if grant.alarm is not None:
            grant.alarm.cancel()
        # In parts, because some loops take no time limit of many years.
        left = min(max(0.0, when - time.monotonic()), 3600.0)
        grant.alarm = loop.call_later(left, self._look_after, grant)

    def _forget(self, grant: Grant) -> None:
        grant.given_back = True
        if grant.alarm is not None:
            grant.alarm.cancel()

    def _look_after(self, grant: Grant) -> None:
        if grant.given_back or grant.lost:
            return
        now = time.monotonic()
        if now >= grant.ends_at:
            self._lose(grant)
        elif self._renew and now >= grant.renew_at:
            grant.renew_at = math.inf
            self._watch(grant)
            self._locks.start(self._renew_in_background(grant))
        else:
            # It was early.
            self._watch(grant)

    async def _renew_in_background(self, grant: Grant) -> None:
        try:
            await self._prolong(grant, grant.lease)
        except Exception:
            # A right that was taken away may be given again before the lease is over.
            grant.renew_at = time.monotonic() + grant.lease / 10
            self._watch(grant)

    async def _prolong(self, grant: Grant, lease: float) -> bool:
        for pause in pauses():
            asked_at = time.monotonic()
            if asked_at >= grant.ends_at or grant.given_back:
                return False
            try:
                answer = await self._call_on(grant.kept, self._request.extend(lease))
                break
            except Exception as error:
                if is_of_another_type(error):
                    answer = 0
                    break
                if final(error) is not None:
                    raise
            await asyncio.sleep(min(pause, max(0.0, grant.ends_at - time.monotonic())))
        if answer != len(self._request.keys) or grant.lost:
            self._lose(grant)
            return False
        grant.prolong(lease, asked_at)
        self._watch(grant)
        return True

    def _lose(self, grant: Grant) -> None:
        if grant.given_back or grant.lost:
            return
        grant.lost = True
        self._lost = True
        self._wake()
        if self._on_lost is not None:
            told = self._on_lost(self)
            if inspect.iscoroutine(told):
                self._locks.start(told)

    def _put_away(self, grant: Grant) -> None:
        """Forgets a grant that is over and was never released."""
        self._lose(grant)
        self._forget(grant)
        self._locks.start(self._locks.connections.close_kept(grant.kept))
        self._grant = self._fence = None

    def _let_go(self) -> None:
        """From now on the caller looks after what was granted, by its token."""
        if self._grant is not None:
            self._forget(self._grant)
        self._grant = self._owner = self._fence = None

    # --- commands -----------------------------------------------------------------------------------

    async def _call(self, words: Words, seconds: Optional[float] = None) -> Any:
        return await self._locks.connections.call(self._request.key, words, seconds)

    async def _call_on(self, kept: Kept, words: Words, seconds: Optional[float] = None) -> Any:
        if not self._request.session:
            return await self._call(words, seconds)
        return await self._locks.connections.call_on(kept, self._request.key, words, seconds)

    async def _persist(self, words: Words, until: float, kept: Optional[Kept] = None) -> Any:
        """The answer to a command, sent again and again until a time."""
        for pause in pauses():
            try:
                if kept is None:
                    return await self._call(words)
                return await self._call_on(kept, words)
            except Exception as error:
                if final(error) is not None or time.monotonic() + pause >= until:
                    raise
            await asyncio.sleep(pause)


class Locks(LocksBase[Lock]):
    """Makes locks with the settings of a client of ``redis.asyncio``, of a cluster or by Sentinel too."""

    _lock_class = Lock

    def __init__(self, client: Any) -> None:
        super().__init__()
        self.connections = Connections(client)
        self._tasks: Set["asyncio.Future[Any]"] = set()

    async def aclose(self) -> None:
        """Closes connections that nobody uses. What is held stays so."""
        await self.connections.close()

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Future[Any]":
        """Has something done beside what the caller does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Has something done to its end, though the caller is cancelled."""
        return await asyncio.shield(self.start(work))
