"""A grant: it is renewed while it is held, until it is released or lost."""

import math
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Callable, Optional, Tuple

from ._commands import Call, Commands, quietly
from ._errors import LockLost, NotHeld, Unavailable
from ._observer import LOG, tell
from ._options import Key, Options, milliseconds
from ._tie import Tie

HELD, LOST, LEFT = "held", "lost", "left"
# The least time by which a renewal must move the deadline.
LEAST_SECONDS = 0.002


class Hold:
    """The state of a grant. Times are those of the monotonic clock."""

    def __init__(self, commands: Commands, options: Options, token: bytes, fence: int) -> None:
        self.options = options
        self.token = token
        self.fence = fence
        self.state = HELD
        self.deadline = -math.inf
        self.renew_at = math.inf
        self.lease = options.lease
        # True if a command that asked for this grant may still arrive.
        self.is_unclear = False
        self.io = commands.io
        self.observer = commands.observer
        self._commands = commands
        self._guard = threading.Lock()
        self._granted_at: Optional[float] = None
        # The server keeps a lock with at_least until then.
        self._stays_until = time.monotonic() + options.at_least
        self._tie = Tie(self.io, options.lease) if options.session else None
        # One renewal at a time, because each may move the tie.
        self._is_renewing = False
        # True if the observer knows that a renewal was refused.
        self._is_refused = False
        # The grant of the program, which is told of a loss.
        self.grant: "Callable[[], Optional[GrantBase]]" = lambda: None

    @property
    def is_lost(self) -> bool:
        return self.state == LOST or (self.state == HELD and time.monotonic() >= self.deadline)

    # --- the lease --------------------------------------------------------------------------------

    def prolong(self, lease: float, asked_at: float) -> None:
        """Move the deadline. The lease counts from the request: the server counts from then or
        later."""
        if self._granted_at is None:
            self._granted_at = asked_at
        self.deadline = max(self.deadline, asked_at + lease - self.options.margin_seconds)
        is_last = self.deadline >= self._longest_deadline - LEAST_SECONDS
        # A late command of the acquire sets its own lease, which may be shorter.
        every = min(lease, self.options.first_lease) / 3 if self.is_unclear else lease / 3
        self.renew_at = math.inf if is_last or not self.options.renew else asked_at + every

    @property
    def _longest_deadline(self) -> float:
        longest = self.options.max_hold
        return math.inf if longest is None else (self._granted_at or 0.0) + longest

    @property
    def due(self) -> float:
        return min(self.renew_at, self.deadline)

    @property
    def is_ended(self) -> bool:
        return self.state != HELD

    def postpone(self, now: float) -> float:
        """Repeat a renewal that failed, because it may succeed before the deadline."""
        self.renew_at = now + self.lease / 10
        return self.due

    def look_after(self, now: float) -> float:
        """Renew the grant, or tell of its loss, if that is due. Return when to look again."""
        if self.is_ended:
            return math.inf
        if now >= self.deadline:
            self.lose()
            return math.inf
        if now >= self.renew_at:
            self.renew_at = math.inf
            if not self._is_renewing:
                self.io.start(self._renew())
        return self.due

    async def _renew(self) -> None:
        longest = self._longest_deadline - time.monotonic() + self.options.margin_seconds
        lease = min(self.lease, longest)
        call = Call(self.token, tie=self._tie)
        self._is_renewing = True
        try:
            await self._commands.retry(
                lambda end: self._extend(call, lease, end), call, self.deadline, True
            )
            self._is_refused = False
        except Exception as error:
            if not self._is_refused and not self.is_lost and not isinstance(error, Unavailable):
                self._is_refused = True
                tell(self.observer.unavailable, error)
            self.postpone(time.monotonic())
        finally:
            self._is_renewing = False
        self.io.keeper.hold(self)

    async def _extend(self, call: Call, lease: float, end: float) -> bool:
        if self.is_ended:
            # A renewal that is repeated after the release would undo its at_least.
            return False
        asked_at = time.monotonic()
        words = self.options.extend(self.token, lease, ties=call.tie is not None)
        count = await self._commands.ask(self.options.keys[0], words, call, end)
        if count != len(self.options.keys):
            # The keys that aren't lost stay until the release, because the block may still run.
            self.lose()
            return False
        self.prolong(lease, asked_at)
        if call.tie is not None:
            call.tie.moved(asked_at)
        return not self.is_ended

    async def tie(self, until: float, stop: Any) -> None:
        """Tie the grant to a connection, which stays out of its pool from now on."""
        assert self._tie is not None
        call = Call(self.token, stop, self._tie)
        end = min(until, time.monotonic() + self._commands.command_timeout)
        try:
            is_held = await self._commands.retry(
                lambda end: self._extend(call, self.options.first_lease, end), call, end
            )
        except BaseException:
            self._end(LEFT)
            self._tie.cut()
            raise
        if not is_held:
            raise LockLost("the lock was lost before it was tied to its connection")

    async def extend(self, lease: float) -> bool:
        milliseconds("lease", lease)
        if lease <= self.options.margin_seconds:
            raise ValueError("lease must be greater than margin")
        return not (self.is_lost or self.is_ended) and await self.take_over(lease)

    async def take_over(self, lease: float) -> bool:
        """Set the lease, also of a grant that another process acquired."""
        call = Call(self.token)
        end = time.monotonic() + self._commands.command_timeout
        is_held = await self._commands.retry(
            lambda end: self._extend(call, lease, end), call, end
        )
        if is_held:
            self.lease = lease
            self.io.keeper.hold(self)
        return is_held

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, state: str) -> bool:
        """Return False if the grant ended before."""
        with self._guard:
            if self.state != HELD:
                return False
            self.state = state
        self.io.keeper.held.discard(self)
        return True

    def lose(self) -> bool:
        """End the grant as lost, and tell the program once."""
        if not self._end(LOST):
            return False
        grant = self.grant()
        if grant is not None:
            grant._tell_lost()
            tell(self.observer.lost, grant)
        if self._tie is not None:
            self._commands.go_on(self._untie(self._tie))
        return True

    async def _untie(self, tie: Tie) -> None:
        """Close the connections a margin after the loss, because their close releases the lock."""
        await self.io.sleep(self.options.margin_seconds)
        tie.cut()

    def collected(self, grant: "GrantBase") -> None:
        """Release the grant of a program that dropped it."""
        if self.state != HELD:
            return

        async def drop() -> None:
            if self._end(LEFT):
                LOG.warning("a grant of %r was dropped without a release", self.options.keys)
                tell(self.observer.lost, grant)
                await self._leave(Call(self.token), math.inf, time.monotonic())

        self.io.start_from_finalizer(lambda: quietly(drop()))

    def detach(self) -> None:
        if self._tie is not None:
            raise ValueError("a session ends with its connection, so it can't be detached")
        if not self._end(LEFT):
            raise NotHeld("the lock isn't held")

    def abandon(self) -> None:
        """Forget the grant in a forked process. The copies of its connections close."""
        self.state = LEFT
        if self._tie is not None:
            self._tie.abandon()

    async def release(self, until: Optional[float] = None) -> bool:
        """Release the lock, within the command timeout. Later the release goes on without a caller.

        Return True if the grant still held.
        """
        now = time.monotonic()
        was_lost = self.is_lost
        if not self._end(LEFT):
            if self.state == LEFT:
                raise NotHeld("the lock isn't held")
            was_lost, self.state = True, LEFT
        call = Call(self.token)
        try:
            is_held = await self._leave(call, until or now + self._commands.command_timeout, now)
            return is_held and not was_lost
        except BaseException as error:
            self._commands.go_on(self._leave(call, math.inf, now))
            if was_lost and isinstance(error, Exception):
                return False
            raise

    async def _leave(self, call: Call, until: float, now: float) -> bool:
        """Send the release until a server has replied, or the time or the lease is over."""
        end = max(self.deadline, now) + self.options.margin_seconds
        is_in_background = until == math.inf

        async def once(attempt_end: float) -> bool:
            words = self._last_words()
            count = await self._commands.ask(self.options.keys[0], words, call, attempt_end)
            # If a reply was lost, the command before may have released the lock.
            may_have = call.unanswered > 0 and time.monotonic() < self.deadline
            return bool(count == len(self.options.keys) or may_have)

        try:
            end = end if is_in_background else until
            is_held = await self._commands.retry(once, call, end, is_in_background)
            if self._tie is not None:
                self._tie.close()
            return is_held
        finally:
            if self._tie is not None and is_in_background:
                self._tie.cut()

    def _last_words(self) -> Any:
        rest = self._stays_until - time.monotonic()
        if rest > 0:
            return self.options.release_after(self.token, rest)
        if self.is_unclear:
            # A late command has the lease of the acquire, which an extend may have made shorter.
            return self.options.leave(self.token, self.options.longest_trace)
        return self.options.release(self.token)

    async def is_owned(self) -> bool:
        lefts = await self._commands.of_each_key(
            self.options.keys, "LOCK.CHECK", self.token, call=Call(self.token)
        )
        return bool(min(lefts) > 0)


class GrantBase:
    """A grant of a lock. Whoever has it may extend or release it."""

    def __init__(self, lock: Any, hold: Hold) -> None:
        self._lock = lock
        self._hold = hold
        hold.grant = weakref.ref(self)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self._hold.state == HELD else "released"
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{name} {self.keys!r} {state} fence={self.fence}>"

    def __del__(self) -> None:
        # At the end of the interpreter parts of it may be gone.
        with suppress(Exception):
            self._hold.collected(self)

    @property
    def lock(self) -> Any:
        """The lock that was acquired."""
        return self._lock

    @property
    def keys(self) -> Tuple[Key, ...]:
        """The keys."""
        return self._hold.options.keys

    @property
    def fence(self) -> int:
        """The fencing token: greater than that of every earlier grant."""
        return self._hold.fence

    @property
    def token(self) -> str:
        """The token, which lets any client extend or release this grant."""
        return self._hold.token.decode("utf-8", "surrogateescape")

    @property
    def lost(self) -> bool:
        """True if the grant ended before its release."""
        return self._hold.is_lost

    def left(self) -> float:
        """Return the seconds until the loss if the lease isn't renewed; 0 if the grant ended."""
        left = self._hold.deadline - time.monotonic()
        return max(0.0, left) if self._hold.state == HELD else 0.0

    def detach(self) -> None:
        """Leave the grant to another process, which adopts it. It isn't renewed here any more.

        :raises NotHeld: the grant was released or lost before.
        """
        self._hold.detach()

    def _refuse_released(self) -> None:
        if self._hold.state == LEFT:
            raise NotHeld("the lock isn't held")

    def _tell_lost(self) -> None:
        if self._lock._on_lost is not None:
            self._hold.io.tell(self._lock._on_lost, self)

    async def _exit(self, error: Optional[BaseException]) -> None:
        """Release at the end of a guarded block, unless the block did so."""
        if self._hold.state == LEFT:
            return
        try:
            is_held = await self._hold.release()
        except Exception as failure:
            tell(self._hold.observer.unavailable, failure)
        else:
            if not is_held and error is None:
                raise LockLost("the lock was lost before it was released")
