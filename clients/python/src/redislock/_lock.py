"""The logic of locks, written once for threads and for tasks.

Every method that takes time is a coroutine. A task awaits it. A thread runs it to its end with
``_threads.run``, and is blocked meanwhile. Differences between the two are in ``io``: see
``Threads`` and ``Tasks``.
"""

import asyncio
import math
import os
import time
import weakref
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generic,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Type,
    TypeVar,
    Union,
)

from redis.exceptions import ResponseError

from ._call import Call, Kept
from ._commands import Commands, Io
from ._errors import (
    AlreadyHeld,
    Cancelled,
    LockLost,
    NoAnswer,
    NotAcquired,
    NotHeld,
    NotReplicated,
    Unavailable,
    is_of_another_type,
)
from ._observer import Observer, tell
from ._options import Key, Options, Words, is_free, milliseconds, names_of
from ._turn import Turn

T = TypeVar("T")

# The time after a limit in which a reply may come: of any command, and of one that ends a wait.
GRACE_SECONDS = 0.15
END_SECONDS = 0.2
# The longest time without a sign that the server lives, while a call waits.
PROOF_SECONDS = 3.0
# The time for which a call that was given up waits until its cleanup is confirmed.
CONFIRM_SECONDS = 0.2
# The pause between a cleanup that found nothing and the next one, because the command to clean up
# after may have been in flight.
SETTLE_SECONDS = 0.05


class FenceBase(int):
    """The fence of a grant: a number that is also a context manager, which releases the lock."""

    _lock: Any

    def __reduce__(self) -> Any:
        return int, (int(self),)


class Grant:
    """A grant that is held. Times are those of the monotonic clock."""

    def __init__(
        self, lock: "LockBase", call: Call, reply: Any, lease: float, asked_at: float
    ) -> None:
        self.lock = weakref.ref(lock)
        self.owner = lock._io.owner()
        self.user = lock._user()
        self.fence = int(reply[1])
        self.holds = 1
        self.kept = call.kept if lock._options.session else None
        # The connections that a session has left. They close once it is tied to another one.
        self.left: List[Any] = []
        self.granted_at = asked_at
        self.max_end = asked_at + (lock._options.max_hold or math.inf)
        self.is_ended = False
        # True if the observer knows that a renewal was refused.
        self.is_refused = False
        self.forget: Callable[[], Any] = lambda: None
        # The gate of the latest renewal's command, which opens at its end.
        self.renewal: Any = None
        # The order of the commands that set the lease: one at a time, as the server executes them.
        self.turn = Turn(lock._io)
        self._renews = lock._options.renew
        self.prolong(lease, asked_at)

    def prolong(self, lease: float, asked_at: float) -> None:
        """Set the lease, counted from the request, because the server counts from then or later."""
        self.lease = lease
        self.ends_at = asked_at + lease
        self.renew_at = asked_at + lease / 3 if self.renews else math.inf

    def postpone(self, now: float) -> float:
        """Repeat a renewal that failed, because it may succeed before the lease ends."""
        self.renew_at = now + self.lease / 10
        return self.due

    def pass_left(self, call: Any) -> None:
        """Let a call close the connections that the session has left."""
        links, self.left = self.left, []
        for link in links:
            # An inner release may have left the connection on which a renewal tied the session.
            is_tied = link is call.link and not self.is_ended
            (self.left if is_tied else call.unanswered).append(link)

    def rest(self, at_least: float) -> float:
        """Return the rest of ``at_least`` seconds since the grant, or 0 while it is held."""
        return self.granted_at + at_least - time.monotonic() if self.is_ended else 0.0

    @property
    def renews(self) -> bool:
        """True if the lease is to be renewed once more."""
        return self._renews and self.ends_at < self.max_end - 0.002

    @property
    def due(self) -> float:
        return min(self.renew_at, self.ends_at)

    @property
    def is_over(self) -> bool:
        return self.is_ended or time.monotonic() >= self.ends_at

    def look_after(self, now: float) -> float:
        """Renew the grant, or tell of its loss, if that is due. Return when to look again."""
        lock = self.lock()
        if lock is None or self.is_ended:
            return math.inf
        if now >= self.ends_at:
            lock._lose(self)
            return math.inf
        if now >= self.renew_at:
            self.renew_at = math.inf
            if not lock._io.has_ended(self.user):
                lock._io.start(lock._renew(self))
        return self.due


class Cleanups(List[Any]):
    """The gates of cleanups that go on. Until they are done, their token must not acquire."""


class LockBase:
    """A lock that all users of the same keys share."""

    _fence_class: Type[FenceBase]

    def __init__(self, locks: "LocksBase[Any]", make: Callable[[], Options], on_lost: Any) -> None:
        self._locks = locks
        self._make = make
        self._on_lost = on_lost
        self._begin()

    def _begin(self) -> None:
        """Start without a grant, also in a forked process, because the parent owns the grant."""
        self._io: Any = self._locks._io
        self._commands = self._locks._commands
        self._options = self._make()
        self._guard = self._io.guard()
        self._turn = Turn(self._io)
        self._grant: Optional[Grant] = None
        self._fence: Optional[int] = None
        self._lost = False
        # The time of the latest reply to an action of this object.
        self._replied_at = -math.inf
        # True if a command of this token got no reply. It may still arrive, during a later grant.
        self._is_token_spent = False
        # The calls of acquire() that go on, which cancel() stops.
        self._calls: Set[Any] = set()
        self._cleanups = self._locks._cleanups_of(self._options)
        # The users whose grant was lost, and how often each of them is still to release it.
        self._losers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        # The sum of these holds, with those of users that were collected.
        self._lost_holds = 0

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self._grant is not None else "not held"
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{name} {self._options.keys!r} {state} fence={self.fence}>"

    @property
    def keys(self) -> Sequence[Key]:
        """The keys."""
        return self._options.keys

    @property
    def token(self) -> Union[str, bytes]:
        """The token, which names this owner to the server and lets any client release the lock.

        If a command gets no reply, the next grant has a new token, unless you chose the token.
        """
        return self._options.token

    @property
    def fence(self) -> Optional[int]:
        """The fence of the last grant, greater than every earlier one. None before the first."""
        return self._fence

    @property
    def lost(self) -> bool:
        """True if the last grant ended before its release."""
        grant = self._grant
        return self._lost or (grant is not None and grant.is_over)

    # --- acquire ----------------------------------------------------------------------------------

    async def _acquire(
        self, timeout: Optional[float] = None, blocking: bool = True
    ) -> Optional[FenceBase]:
        if not blocking and timeout is not None:
            raise ValueError("timeout needs blocking=True")
        seconds = timeout if blocking else 0.0
        if seconds is None:
            seconds = self._options.wait
        limit = math.inf if seconds is None else milliseconds("timeout", seconds, zero=True) / 1000
        began = time.monotonic()
        call = self._call(is_apart=self._options.session or self._options.replicas is not None)
        outcome = "failed"
        self._calls.add(call)
        try:
            fence = await self._acquire_in_turn(call, began + limit, is_try=limit == 0)
            outcome = "not acquired" if fence is None else "granted"
        except AlreadyHeld:
            call.has_waited, outcome = False, "granted"
            raise
        except (Cancelled, asyncio.CancelledError):
            outcome = "cancelled"
            raise
        finally:
            self._calls.discard(call)
            if call.has_waited or outcome != "granted":
                tell(self._locks._observer.waited, self, time.monotonic() - began, outcome)
        if fence is not None:
            tell(self._locks._observer.granted, self)
        return fence

    async def _acquire_in_turn(self, call: Any, until: float, is_try: bool) -> Optional[FenceBase]:
        end = self._deadline() if is_try else until + GRACE_SECONDS
        owner = self._io.owner()
        held = self._held()
        if held is not None and owner is held.owner:
            if self._options.reentrant:
                return await self._again(held, call, end)
            if owner is not None:
                raise AlreadyHeld("this thread holds the lock already; make it with reentrant=True")
        self._refuse_lost()
        began = time.monotonic()
        if not await self._turn.take(call, until):
            if self._grant is None and self._replied_at < began:
                await self._refuse_outage(end)
            return None
        fence = None
        try:
            self._refuse_lost()
            held = self._held()
            if held is not None:
                fence = await self._again(held, call, end)
            else:
                fence = await self._acquire_anew(call, until, end)
        finally:
            if fence is None or not self._keeps_turn:
                self._turn.give()
        return fence

    def _refuse_lost(self) -> None:
        if self._options.reentrant and self._user() in self._losers:
            raise LockLost("the lock was lost before it was acquired again")

    async def _refuse_outage(self, end: float) -> None:
        """Raise an error if no server replies. A reply that is an error is a reply."""
        with suppress(ResponseError):
            await self._of_each_key(end, "LOCK.CHECK", self.token)

    def _user(self) -> Any:
        """Return the thread or task, or a part of the object if the object is the owner."""
        return self._io.me() if self._keeps_turn else self._turn

    @property
    def _keeps_turn(self) -> bool:
        """False if the object is the owner, so that every task may acquire it again."""
        return not self._options.reentrant or self._io.owner() is not None

    async def _acquire_anew(self, call: Any, limit: float, end: float) -> Optional[FenceBase]:
        try:
            # A release that fails meanwhile adds its cleanup.
            while gate := next(iter(self._cleanups), None):
                if not await call.wait(gate, end - time.monotonic()):
                    raise Unavailable("no answer from the server to the cleanup of an earlier call")
            if self._is_token_spent:
                self._options = self._make()
                self._is_token_spent = False
            call.token = self._options.raw_token
            grant = await self._try(call, end)
            if grant is None and time.monotonic() < limit:
                call.has_waited = True
                waits = (
                    self._wait_blocked if self._io.blocks or call.is_apart else self._wait_in_place
                )
                grant = await waits(call, limit)
        except BaseException as error:
            await self._withdraw(call, error)
            raise
        if grant is None:
            await self._withdraw(call)
            return None
        call.leave()
        if grant.kept is None:
            self._io.put_back(call)
        return await self._hold_or_release(grant)

    async def _try(self, call: Any, end: float) -> Optional[Grant]:
        def words(lease: float, left: float) -> Words:
            return self._options.acquire(lease, 1, left)

        async def once(end: float) -> Optional[Grant]:
            return await self._request(call, words, end)

        return await self._retry(once, call, end)

    async def _request(
        self,
        call: Any,
        words: Callable[[float, float], Words],
        end: float,
        answer_by: Optional[float] = None,
    ) -> Optional[Grant]:
        """Request the lock once. Ask again if the reply came late, because it may be over."""
        lease = min(self._options.lease, self._options.max_hold or math.inf)
        late = GRACE_SECONDS if self._options.replicas is not None else 0.0
        while True:
            asked_at = time.monotonic()
            command = words(lease, end - asked_at)
            (reply,) = await self._ask(call, command, until=end + late, answer_by=answer_by)
            if not isinstance(reply, list):
                call.is_unsure = reply is not None
                return None
            if time.monotonic() - asked_at < lease / 3 or answer_by is not None:
                return Grant(self, call, reply, lease, asked_at)
            call.is_unsure = True

    async def _wait_blocked(self, call: Any, limit: float) -> Optional[Grant]:
        """Wait with LOCK.WAIT. Now and then the same wait moves to a new connection, which proves
        that the server lives."""

        def words(lease: float, _: float) -> Words:
            left = limit - time.monotonic()
            return self._options.wait_for(lease, left, self._commands.command_timeout)

        while True:
            # The new wait has taken over from all but the last.
            while len(call.unanswered) > 1:
                call.unanswered.pop(0).leave(())
            silent_at = min(limit + END_SECONDS, time.monotonic() + PROOF_SECONDS)

            async def once(end: float) -> Any:
                try:
                    return await self._request(call, words, end, answer_by=silent_at)
                except NoAnswer as error:
                    return error

            asked_at = time.monotonic()
            grant = await self._retry(once, call, limit + GRACE_SECONDS)
            if not isinstance(grant, NoAnswer):
                if grant is None and not self._options.session:
                    # KEEP keeps the place beyond the wait.
                    call.is_unsure = True
                    await self._ask(call, self._options.cancel(), until=limit + END_SECONDS)
                    call.is_unsure = False
                if grant is None or time.monotonic() - asked_at < grant.lease / 3:
                    return grant  # type: ignore[no-any-return]
                # The grant may be over. If it isn't, this confirms it.
                call.is_unsure = True
                grant = await self._try(call, min(limit + GRACE_SECONDS, self._deadline()))
                if grant is not None:
                    return grant
            elif time.monotonic() >= limit:
                raise Unavailable("no answer from the server to the end of the wait")

    async def _wait_in_place(self, call: Any, limit: float) -> Optional[Grant]:
        """Wait with LOCK.QUEUE, which needs no connection, until a message says to claim."""
        options = self._options
        asks_every = min(PROOF_SECONDS, options.keep / 3, options.lease / 3)
        message, gate = self._io.bell()

        async def once(end: float) -> Optional[Grant]:
            gate.close()
            channel = await self._io.listen(self._commands, options.keys[0], end)
            return await self._request(
                call, lambda lease, _: options.queue(lease, channel, message), end
            )

        try:
            while True:
                grant = await self._retry(once, call, limit + GRACE_SECONDS)
                if grant is not None:
                    return grant
                await call.wait(gate, min(limit - time.monotonic(), asks_every))
                if time.monotonic() >= limit:
                    return await self._claim_or_leave(call, limit + END_SECONDS)
        finally:
            self._io.silence(message)

    async def _claim_or_leave(self, call: Any, end: float) -> Optional[Grant]:
        """Take the lock if it was granted at the last moment, and leave the queue."""
        lease, asked_at = (
            min(self._options.lease, self._options.max_hold or math.inf),
            time.monotonic(),
        )
        acquire = self._options.acquire(lease, 1, 0)
        reply, _ = await self._ask(call, acquire, self._options.cancel(), until=end)
        call.is_unsure = False
        return None if reply is None else Grant(self, call, reply, lease, asked_at)

    async def _again(self, grant: Grant, call: Any, end: float) -> FenceBase:
        """Add a hold to a held lock, which needs no wait."""
        if grant.kept is not None:
            call.kept, call.is_of_session = grant.kept, True
        grant.holds += 1

        async def once(end: float) -> Any:
            async with self._ordered(grant, call, end):
                if grant.is_over:
                    return None
                asked_at = time.monotonic()
                left = end - asked_at
                (reply,) = await self._ask(
                    call, self._options.acquire(grant.lease, grant.holds, left), until=end
                )
                if reply is not None:
                    grant.prolong(grant.lease, asked_at)
                return reply

        # If the grant is lost meanwhile, the next one waits for the end of this request.
        with self._gated():
            try:
                reply = await self._retry(once, call, end)
                if reply is None or int(reply[1]) != grant.fence or grant.is_over:
                    raise LockLost("the lock was lost before it was acquired again")
            except BaseException as error:
                await self._withdraw_hold(grant, call, error)
                raise
            finally:
                self._let_go(grant, call)
        self._put_back(grant, call)
        return self._fence_of(grant)

    async def _withdraw_hold(self, grant: Grant, call: Any, error: BaseException) -> None:
        """Take back a hold whose request failed. The grant may have ended meanwhile."""
        options = self._options
        grant.holds -= 1
        if not grant.holds and self._end(grant):
            # Other tasks have released their holds, so this is the last release.
            self._give_back_later(grant, *self._giving_back(grant, options.at_least))
        elif grant.is_over or isinstance(error, LockLost):
            if grant.is_ended:
                # If the request came after the release, the server has made a new grant.
                call.is_unsure = True
                self._take_lost_hold(grant)
            await self._withdraw(call)
            self._lose(grant)
            return
        elif grant.kept is not None:
            # The release of the session ends all holds. Until then it needs a connection.
            self._renew_now(grant)
            return
        call.leave((options.give_back(grant.holds, grant.rest(options.at_least)),))

    async def _hold_or_release(self, grant: Grant) -> FenceBase:
        try:
            return self._hold(grant)
        except RuntimeError:
            # No thread can be started, so nothing would renew the lease.
            if self._end(grant):
                await self._give_back(grant, self._deadline())
            raise

    def _hold(self, grant: Grant) -> FenceBase:
        with self._guard:
            self._grant, self._fence, self._lost = grant, grant.fence, False
            self._losers.pop(grant.user, None)
            self._lost_holds = sum(self._losers.values())
        finalizer = weakref.finalize(self, _collected, self._commands, self._options, grant)
        finalizer.atexit = False  # type: ignore[misc]
        grant.forget = finalizer.detach
        self._io.keeper.hold(grant)
        return self._fence_of(grant)

    def _fence_of(self, grant: Grant) -> FenceBase:
        fence = self._fence_class(grant.fence)
        fence._lock = self
        return fence

    async def _withdraw(self, call: Any, error: Optional[BaseException] = None) -> None:
        """Give up a request. Leave no wait and no grant behind, as soon as a server is reached."""
        if not (call.unanswered or call.is_unsure or isinstance(error, NotReplicated)):
            self._io.put_back(call)
            return
        undo = self._undo(0)
        call.leave(undo)
        self._io.put_back(call)
        call = self._call()

        async def once(end: float) -> None:
            for _ in range(2):
                if any(await self._ask(call, *undo, until=end)):
                    return
                await self._io.sleep(SETTLE_SECONDS)

        longest = max(self._options.lease, self._options.keep)
        gate = self._clean_up(once, call, time.monotonic() + longest)
        if error is not None and not isinstance(error, Unavailable):
            await gate.wait(CONFIRM_SECONDS)

    def _undo(self, holds: int) -> Sequence[Words]:
        return self._options.cancel(), self._options.release(holds)

    def _cancel(self) -> None:
        for call in list(self._calls):
            call.stop()

    # --- hold and release -------------------------------------------------------------------------

    def _held(self) -> Optional[Grant]:
        """Return the grant, unless its lease is over by the local clock."""
        grant = self._grant
        if grant is not None and grant.is_over:
            self._lose(grant)
            return None
        return grant

    def _end(self, grant: Grant) -> bool:
        """Forget a grant locally. Return False if that was done before."""
        with self._guard:
            if grant.is_ended:
                return False
            grant.is_ended = True
            self._grant = None
        self._io.keeper.held.discard(grant)
        grant.forget()
        return True

    def _lose(self, grant: Grant) -> None:
        if not self._end(grant):
            return
        with self._guard:
            self._lost = True
            self._losers[grant.user] = grant.holds
            self._lost_holds += grant.holds
        # Some of the keys may still be held, or all of them for a moment.
        once, call = self._giving_back(grant, at_least=0)
        self._clean_up(once, call, self._deadline(), is_told=False)
        if self._keeps_turn:
            self._turn.give()
        self._tell_lost()

    def _tell_lost(self) -> None:
        self._io.tell(self._locks._observer.lost, self)
        if self._on_lost is not None:
            self._io.tell(self._on_lost, self)

    async def _release(self) -> bool:
        grant = self._grant_to_release()
        if grant is None:
            return False
        if grant.holds > 1:
            grant.holds -= 1
            is_held = await self._give_back(grant, self._deadline())
            if not is_held:
                self._lose(grant)
            return is_held
        if not self._end(grant):
            return await self._release()
        return await self._give_back_and_turn(grant, self._deadline())

    async def _give_back_and_turn(self, grant: Grant, end: float) -> bool:
        try:
            # A command that is sent again would release the next grant of this token.
            with self._gated():
                is_held = await self._give_back(grant, end)
                if not is_held:
                    self._lost = True
                    self._tell_lost()
                return is_held
        finally:
            if self._keeps_turn:
                self._turn.give()

    def _grant_to_release(self) -> Optional[Grant]:
        """Return the caller's grant, or None if it was lost."""
        grant = self._held()
        if self._take_lost_hold(grant):
            return None
        if grant is None:
            raise NotHeld("the lock isn't held")
        if self._options.reentrant and grant.owner is not self._io.owner():
            raise NotHeld("another thread holds this reentrant lock")
        return grant

    def _take_lost_hold(self, grant: Optional[Grant]) -> bool:
        """Return True if the release is that of a lost hold."""
        user = self._user()
        with self._guard:
            if user not in self._losers and grant is None:
                # Another thread or task releases the lost hold.
                user = next(iter(self._losers), user)
            holds = self._losers.pop(user, 0)
            if holds > 1:
                self._losers[user] = holds - 1
            if not holds and (grant is not None or not self._lost_holds):
                return False
            self._lost_holds -= 1
            return True

    def _giving_back(self, grant: Grant, at_least: float) -> Any:
        """Return the action that releases all holds except ``grant.holds``, and its call."""
        call, options = self._call(grant.kept), self._options
        holds = grant.holds if not grant.is_ended else 0
        if grant.is_ended:
            grant.pass_left(call)
        if grant.rest(at_least) > 0:
            # The lock stays for this object too, unless the program chose the token.
            self._options = self._make()

        async def once(end: float) -> int:
            if not holds and grant.renewal is not None:
                # A renewal that arrives later would set the lease again.
                await grant.renewal.wait((end - time.monotonic()) / 2)
            rest = 0.0 if holds else grant.rest(at_least)
            (count,) = await self._ask(call, options.give_back(holds, rest), until=end)
            if not holds and grant.kept is not None:
                grant.kept.is_done = True
            self._put_back(grant, call)
            return len(options.keys) if count and rest > 0 else count

        return once, call

    async def _give_back(self, grant: Grant, end: float) -> bool:
        once, call = self._giving_back(grant, self._options.at_least)
        try:
            count = await self._retry(once, call, end)
        except BaseException as error:
            if isinstance(error, Unavailable) or not isinstance(error, Exception):
                self._give_back_later(grant, once, call)
            else:
                self._let_go(grant, call)
            if is_of_another_type(error):
                return False
            if isinstance(error, Unavailable):
                left = max(0.0, grant.ends_at - time.monotonic())
                raise Unavailable(
                    f"{error}; the lock ends with its lease, in {left:.3g} s"
                ) from error
            raise
        # If a reply was lost, the command before may have released the lock. A session may instead
        # have ended with its connection.
        may_be_released = (
            count == 0
            and bool(call.unanswered)
            and grant.is_ended
            and grant.kept is None
            and grant.rest(self._options.at_least) <= 0
        )
        self._let_go(grant, call)
        return may_be_released or bool(count == len(self._options.keys))

    def _give_back_later(self, grant: Grant, once: Callable[[float], Any], call: Any) -> None:
        if grant.kept is not None and not grant.is_ended:
            # The last release ends all holds. Until then the session needs a connection.
            self._renew_now(grant)
            self._let_go(grant, call)
        else:
            self._clean_up(once, call, grant.ends_at)

    def _let_go(self, grant: Grant, call: Any) -> None:
        """Close the connections without a reply. A session that is held first needs another one."""
        if grant.kept is None or grant.is_ended:
            call.leave()
        else:
            links, call.unanswered = call.unanswered, []
            grant.left += links

    def _put_back(self, grant: Grant, call: Any) -> None:
        """Keep a call's connection, unless a session needs it."""
        if grant.kept is None or grant.kept.is_done:
            self._io.put_back(call)

    async def _renew(self, grant: Grant) -> None:
        call = self._call(grant.kept)

        async def once(end: float) -> bool:
            async with self._ordered(grant, call, end):
                lease = min(grant.lease, grant.max_end - time.monotonic())
                if grant.is_over or lease <= 0:
                    return True
                grant.renewal = gate = self._io.gate()
                try:
                    return await self._prolong(grant, call, lease, grant.lease, end)
                finally:
                    gate.open()

        try:
            is_held = await self._retry(once, call, grant.ends_at, in_background=True)
        except Unavailable:
            return  # The keeper tells of the loss at the end of the lease.
        except Exception as error:
            is_held = not is_of_another_type(error)
            if is_held and not grant.is_refused:
                grant.is_refused = True
                tell(self._locks._observer.unavailable, error)
            # A permission that was revoked may be given again before the lease ends.
            grant.postpone(time.monotonic())
        finally:
            self._let_go(grant, call)
        if not is_held:
            self._lose(grant)
        elif not grant.is_ended:
            self._io.keeper.hold(grant)

    def _renew_now(self, grant: Grant) -> None:
        now = time.monotonic()
        if now < grant.max_end:
            grant.renew_at = min(grant.renew_at, now)
        self._io.keeper.hold(grant)

    async def _extend(self, lease: float) -> bool:
        milliseconds("lease", lease)
        grant = self._held()
        if grant is None:
            return False
        call, began = self._call(grant.kept), time.monotonic()

        async def once(end: float) -> bool:
            async with self._ordered(grant, call, end):
                return not grant.is_over and await self._prolong(grant, call, lease, lease, end)

        try:
            is_held = await self._retry(once, call, self._deadline()) and not grant.is_ended
        except BaseException as error:
            if not is_of_another_type(error):
                # The server may yet set a lease that is shorter than the one that is known here.
                self._renew_or_shorten(grant, call, began + lease)
                raise
            is_held = False
        finally:
            self._let_go(grant, call)
        if is_held:
            self._io.keeper.hold(grant)
        else:
            self._lose(grant)
        return is_held

    def _renew_or_shorten(self, grant: Grant, call: Any, ends_at: float) -> None:
        """Set the lease anew. If it isn't renewed, count on the end that the call may have set."""
        if grant.renews:
            self._renew_now(grant)
        elif call.unanswered:
            grant.ends_at = min(grant.ends_at, ends_at)
            self._io.keeper.hold(grant)

    @asynccontextmanager
    async def _ordered(self, grant: Grant, call: Any, end: float) -> AsyncIterator[None]:
        """Let no other command set the lease until the block is left."""
        if not await grant.turn.take(call, end):
            raise Unavailable("no answer from the server to an earlier command of this lock")
        try:
            yield
        finally:
            grant.turn.give()

    async def _prolong(
        self, grant: Grant, call: Any, lease: float, later: float, end: float
    ) -> bool:
        """Set the lease at the server. ``later`` is that of later renewals."""
        asked_at = time.monotonic()
        (count,) = await self._ask(call, self._options.extend(lease), until=end)
        self._put_back(grant, call)
        if count == len(self._options.keys):
            grant.prolong(lease, asked_at)
            grant.lease = later
            grant.is_refused = False
            # The session is tied to the connection of this call now.
            grant.pass_left(call)
            call.leave()
        return bool(count == len(self._options.keys))

    # --- ask the server ---------------------------------------------------------------------------

    async def _left(self) -> float:
        lefts = await self._of_each_key(self._deadline(), "LOCK.CHECK", self.token)
        return float(min(lefts)) / 1000

    async def _is_locked(self) -> bool:
        infos = await self._of_each_key(self._deadline(), "LOCK.INFO", "WAITERS", 0)
        return not all(is_free(info) for info in infos)

    async def _of_each_key(self, end: float, command: str, *words: Any) -> List[Any]:
        call = self._call()
        commands = [(command, key, *words) for key in self._options.keys]

        async def once(end: float) -> List[Any]:
            replies = await self._ask(call, *commands, until=end)
            self._io.put_back(call)
            return replies

        return await self._retry(once, call, end)

    # --- with -------------------------------------------------------------------------------------

    async def _enter(self) -> None:
        if await self._acquire() is None:
            raise NotAcquired("somebody else had the lock all the time")

    async def _exit(self, error: Optional[BaseException]) -> None:
        try:
            is_held = await self._release()
        except NotHeld:
            if error is None:
                raise
        except Exception as failure:
            tell(self._locks._observer.unavailable, failure)
        else:
            if not is_held and error is None:
                raise LockLost("the lock was lost before it was released")

    # --- calls ------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._commands.command_timeout

    def _call(self, kept: Optional[Kept] = None, is_apart: bool = False) -> Any:
        return self._io.call(self._options.raw_token, kept, is_apart or kept is not None)

    async def _ask(
        self, call: Any, *commands: Words, until: float, answer_by: Optional[float] = None
    ) -> List[Any]:
        try:
            return await self._commands.ask(self._options.keys[0], commands, call, until, answer_by)
        finally:
            if call.unanswered:
                self._is_token_spent = True

    async def _retry(
        self,
        act: Callable[[float], Awaitable[T]],
        call: Any,
        until: float,
        in_background: bool = False,
    ) -> T:
        """Repeat an action after outages. Note the reply for callers that wait for their turn."""

        async def noted(end: float) -> T:
            result = await act(end)
            if not isinstance(result, NoAnswer):
                self._replied_at = time.monotonic()
            return result

        return await self._commands.retry(noted, call, until, in_background)

    @contextmanager
    def _gated(self) -> Iterator[None]:
        """Let the next acquire wait until the block is left."""
        gate = self._io.gate()
        self._cleanups.append(gate)
        try:
            yield
        finally:
            self._cleanups.remove(gate)
            gate.open()

    def _clean_up(
        self, once: Callable[[float], Any], call: Any, until: float, is_told: bool = True
    ) -> Any:
        """Go on with an action in the background. Return the gate that opens at its end."""
        gate = self._io.gate()
        self._cleanups.append(gate)

        async def work() -> None:
            try:
                await self._retry(once, call, until, in_background=is_told)
            except Exception:
                pass  # The lock ends with its lease.
            finally:
                call.leave()
                self._cleanups.remove(gate)
                gate.open()

        try:
            self._io.start(work())
        except RuntimeError as error:
            # No thread can be started. The lock ends with its lease.
            self._cleanups.remove(gate)
            gate.open()
            tell(self._locks._observer.unavailable, error)
        return gate


def _collected(commands: Commands, options: Options, grant: Grant) -> None:
    """Release the grant of a lock object that nothing refers to any more."""
    if grant.is_ended:
        return
    grant.is_ended = True
    io: Any = commands.io
    io.keeper.held.discard(grant)

    async def release() -> None:
        call = io.call(options.raw_token, grant.kept, grant.kept is not None)
        grant.pass_left(call)

        async def once(end: float) -> None:
            await commands.ask(options.keys[0], [options.release(0)], call, end)
            io.put_back(call)

        try:
            await commands.retry(once, call, grant.ends_at, in_background=True)
        except Exception as error:
            tell(commands.observer.unavailable, error)
        finally:
            call.leave()

    io.start_from_finalizer(release)


L = TypeVar("L", bound=LockBase)


class LocksBase(Generic[L]):
    """A factory of locks with the settings of a client."""

    _lock_class: Type[L]
    _client_classes: Any

    def __init__(
        self, client: Any, io: Io, command_timeout: float, observer: Optional[Observer]
    ) -> None:
        if not isinstance(client, self._client_classes):
            names = " or ".join(f"{it.__module__}.{it.__qualname__}" for it in self._client_classes)
            raise TypeError(f"client must be a {names}")
        if observer is not None and not isinstance(observer, Observer):
            raise TypeError("observer must be a redislock.Observer")
        seconds = milliseconds("command_timeout", command_timeout) / 1000
        self._io: Any = io
        self._observer = observer or Observer()
        self._commands = Commands(client, io, seconds, self._observer)
        self._made: "weakref.WeakSet[L]" = weakref.WeakSet()
        self._forget_cleanups()
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
        reentrant: bool = False,
        max_hold: Optional[float] = 86_400.0,
        at_least: float = 0.0,
        data: Union[str, bytes, None] = None,
        replicas: Optional[int] = None,
        on_lost: Optional[Callable[[L], Any]] = None,
    ) -> L:
        """Return a lock on a key, or on several keys that are granted together or not at all.

        Times are in seconds, and rounded up to whole milliseconds. A wrong argument raises
        ``ValueError`` or ``TypeError`` that names it.

        :param keys: ``str`` or ``bytes``, one or several. In a cluster all in one slot.
        :param lease: how long others wait if this process dies; more than 0. Default: 30.
        :param wait: how long ``acquire()`` and ``with`` wait; 0 or more. Default: None, no limit.
        :param token: the owner's name, 1 to 256 bytes, not ``"*"``. Default: 128 random bits.
        :param shared: True if shared holders admit each other. Default: False.
        :param limit: a semaphore with that many permits, 1 to 2**32 - 1. Default: None.
        :param permits: how many permits this lock takes, 1 to ``limit``. Default: None, 1.
        :param session: True if the lock ends with a connection of its own. Default: False.
        :param keep: how long the place in the queue is kept without a connection. Default: 10.
        :param renew: True to renew the lease at a third of it. Default: True.
        :param reentrant: True if its owner may acquire it again: the thread, or in asyncio the
            object. Otherwise a thread that does so gets ``AlreadyHeld``. Default: False.
        :param max_hold: how long the lease is renewed, from the grant. Default: 86400, a day. None
            has no end.
        :param at_least: after the release the lock stays held until that long after the grant.
            Default: 0.
        :param data: what LOCK.INFO shows of this holder, at most 1024 bytes. Default: None.
        :param replicas: how many replicas must acknowledge the grant within the command timeout, 1
            to 1000; otherwise ``NotReplicated``. Default: None.
        :param on_lost: called with the lock, once for each loss. Default: None.
        """
        if on_lost is not None and not callable(on_lost):
            raise TypeError("on_lost must be callable")
        options = {
            "lease": lease, "wait": wait, "shared": bool(shared), "limit": limit,
            "permits": permits, "session": bool(session), "keep": keep, "renew": bool(renew),
            "reentrant": bool(reentrant), "max_hold": max_hold, "at_least": at_least,
            "data": data, "replicas": replicas,
        }  # fmt: skip
        # The caller's list may change, and an iterator has its keys once.
        names = names_of(keys)
        lock = self._lock_class(self, lambda: Options.of(names, token, **options), on_lost)
        self._made.add(lock)
        return lock

    def _forget_cleanups(self) -> None:
        self._guard = self._io.guard()
        # Lock objects with one chosen token share them.
        self._cleanups: "weakref.WeakValueDictionary[Any, Cleanups]" = weakref.WeakValueDictionary()

    def _cleanups_of(self, options: Options) -> Cleanups:
        with self._guard:
            return self._cleanups.setdefault((options.keys, options.raw_token), Cleanups())

    async def _release_all(self) -> int:
        count = 0
        failure: Optional[Exception] = None
        end = time.monotonic() + self._commands.command_timeout
        for grant in list(self._io.keeper.held):
            lock = grant.lock()
            if lock is None or not lock._end(grant):
                continue
            try:
                count += await lock._give_back_and_turn(grant, end)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        return count

    async def _send(self, key: Key, words: Words) -> Any:
        """Return the reply to a command that belongs to no lock object."""
        call = self._io.call(b"")

        async def once(end: float) -> Any:
            (reply,) = await self._commands.ask(key, [words], call, end)
            self._io.put_back(call)
            return reply

        end = time.monotonic() + self._commands.command_timeout
        return await self._commands.retry(once, call, end)

    async def _release_of(self, key: Key, token: Any, later: float) -> bool:
        """Release a lock that no lock object holds. Return False if the token doesn't hold it.

        If no server is reached, the release goes on in the background for ``later`` seconds.
        """
        call = self._io.call(b"")

        async def once(end: float) -> bool:
            (count,) = await self._commands.ask(key, [("LOCK.RELEASE", key, token)], call, end)
            self._io.put_back(call)
            # If a reply was lost, the command before may have released the lock.
            return count == 1 or bool(call.unanswered)

        async def work() -> None:
            with suppress(Exception):
                end = time.monotonic() + later
                await self._commands.retry(once, call, end, in_background=True)

        try:
            end = time.monotonic() + self._commands.command_timeout
            return await self._commands.retry(once, call, end)
        except Unavailable:
            if later > 0:
                self._io.start(work())
            raise

    def _forked(self) -> None:
        # The parent owns the grants, so the child must not release them when it collects its locks.
        held = [lock._grant for lock in list(self._made) if lock._grant is not None]
        for grant in [*self._io.keeper.held, *held]:
            grant.is_ended = True
            grant.forget()
            if grant.kept is not None:
                # The session must end with the parent's connection, so this copy closes.
                grant.kept.link = None
        self._io.forget()
        self._forget_cleanups()
        for lock in list(self._made):
            lock._begin()


_ALL: "weakref.WeakSet[LocksBase[Any]]" = weakref.WeakSet()


def _forked() -> None:
    for locks in list(_ALL):
        locks._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
