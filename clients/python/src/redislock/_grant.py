"""A grant: it is renewed while it is held, until it is released or lost."""

from __future__ import annotations

import math
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Callable

from ._commands import Call, Commands, quietly
from ._errors import LockLost, NotHeld, Unavailable
from ._observer import LOG, tell
from ._options import Options, milliseconds

HELD, LOST, LEFT = "held", "lost", "left"


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
        # True if the observer knows that renewals are refused.
        self._is_refused = False
        # The pool and the connection that a session is tied to until its end.
        self.lent: tuple[Any, Any] | None = None
        self.io = commands.io
        self.observer = commands.observer
        self._commands = commands
        self._guard = threading.Lock()
        self._longest_deadline = time.monotonic() + options.longest_hold
        # The server keeps a lock with at_least until then.
        self._stays_until = time.monotonic() + options.at_least
        # The grant of the program, which is told of a loss.
        self.grant: Callable[[], GrantBase | None] = lambda: None

    @property
    def is_lost(self) -> bool:
        return self.state == LOST or (self.state == HELD and time.monotonic() >= self.deadline)

    # --- the lease --------------------------------------------------------------------------------

    def prolong(self, lease: float, asked_at: float) -> None:
        """Move the deadline. The lease counts from the request: the server counts from then or
        later."""
        # A late command of the acquire sets its own lease, which may be shorter.
        shortest = min(lease, self.options.first_lease) if self.is_unclear else lease
        self.deadline = max(self.deadline, asked_at + shortest - self.options.margin_seconds)
        is_last = self.deadline >= self._longest_deadline
        self.renew_at = math.inf if is_last or not self.options.renew else asked_at + shortest / 3

    @property
    def due(self) -> float:
        return min(self.renew_at, self.deadline)

    def look_after(self) -> float:
        """Renew the grant, or tell of its loss, if that is due. Return when to look again."""
        now = time.monotonic()
        if self.state != HELD:
            # A renewal or an extend held it again while it was released.
            self.io.keeper.held.discard(self)
            return math.inf
        if now >= self.deadline:
            self.lose()
            return math.inf
        if now >= self.renew_at:
            self.renew_at = math.inf
            self.io.start(self._renew())
        return self.due

    async def _renew(self) -> None:
        longest = self._longest_deadline - time.monotonic() + self.options.margin_seconds
        try:
            await self.extend_until(min(self.lease, longest), self.deadline, True)
            self._is_refused = False
        except Exception as error:
            # It may be allowed before the deadline.
            self.renew_at = time.monotonic() + self.lease / 3
            was_refused, self._is_refused = self._is_refused, not isinstance(error, Unavailable)
            if self._is_refused and not was_refused and not self.is_lost:
                tell(self.observer.unavailable, error)
        self.io.keeper.hold(self)

    async def extend_until(
        self, lease: float, until: float, is_in_background: bool = False
    ) -> bool:
        """Set the lease, and repeat that after outages. Return False if the lock is lost."""
        call = Call(self.token)

        async def once(end: float) -> bool:
            asked_at = time.monotonic()
            if self.state != HELD:
                # A renewal that is repeated after the release would undo its at_least.
                return False
            words = self.options.extend(self.token, lease)
            count = await self._commands.ask(self.options.keys[0], words, call, end)
            if count != len(self.options.keys):
                # The keys that aren't lost stay until the release: the block may still run.
                self.lose()
                return False
            self.prolong(lease, asked_at)
            return self.state == HELD

        return await self._commands.retry(once, call, until, is_in_background)

    async def extend(self, lease: float) -> bool:
        milliseconds("lease", lease)
        if lease <= self.options.margin_seconds:
            raise ValueError("lease must be greater than margin")
        until = time.monotonic() + self._commands.command_timeout
        if self.state != HELD or self.is_lost or not await self.extend_until(lease, until):
            return False
        self.lease = lease
        self.io.keeper.hold(self)
        return True

    async def confirm(self, call: Call, until: float) -> bool:
        """Have a grant acknowledged by replicas, or tied to a connection. Return True if held."""
        asked_at, is_held = time.monotonic(), False
        words = self.options.confirm(self.token, self._commands.command_timeout)
        call.ties = self.options.session
        try:
            count = await self._commands.ask(self.options.keys[0], words, call, until)
            is_held = bool(count == len(self.options.keys))
            self.prolong(self.options.first_lease, asked_at)
            return is_held
        finally:
            self.lent, call.lent, call.ties = call.lent, None, False
            if not is_held:
                await self.close()

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, state: str) -> bool:
        """Return False if the grant ended before."""
        with self._guard:
            if self.state != HELD:
                return False
            self.state = state
        self.io.keeper.held.discard(self)
        return True

    def lose(self) -> None:
        """End the grant as lost, and tell the program once."""
        if not self._end(LOST):
            return
        grant = self.grant()
        if grant is not None:
            grant._tell_lost()
            tell(self.observer.lost, grant)
        if self.lent is not None:
            self._commands.go_on(self._close_later())

    async def _close_later(self) -> None:
        """Close the session a margin after the loss, because that releases the lock."""
        await self.io.pause(time.monotonic() + self.options.margin_seconds, None)
        await self.close()

    async def close(self) -> None:
        """Close the connection of a session. Otherwise the server would go on renewing the lock."""
        lent, self.lent = self.lent, None
        if lent is not None:
            await self._commands.put_back(*lent, False)

    def collected(self, grant: GrantBase) -> None:
        """Release the grant of a program that dropped it."""
        if self.state != HELD:
            return

        async def drop() -> None:
            if self._end(LEFT):
                LOG.warning("a grant of %r was dropped without a release", self.options.keys)
                tell(self.observer.lost, grant)
                await self._leave(Call(self.token), self._ends_at, True)

        self.io.start_from_finalizer(lambda: quietly(drop()))

    def detach(self) -> None:
        if self.lent is not None:
            raise ValueError("a session ends with its connection, so it can't be detached")
        if not self._end(LEFT):
            raise NotHeld("the lock isn't held")

    def abandon(self) -> None:
        """Forget the grant in a forked process. The copy of its connection closes."""
        self.state = LEFT
        self.lent = None

    async def release(self, until: float | None = None) -> bool:
        """Release the lock, within the command timeout. Later the release goes on without a caller.

        Return True if the grant still held.
        """
        was_lost = self.is_lost
        if not self._end(LEFT):
            if self.state == LEFT:
                raise NotHeld("the lock isn't held")
            was_lost, self.state = True, LEFT
        call, end = Call(self.token), time.monotonic() + self._commands.command_timeout
        try:
            return await self._leave(call, until or end) and not was_lost
        except BaseException as error:
            self._commands.go_on(self._leave(call, self._ends_at, True))
            if was_lost and isinstance(error, Exception):
                return False
            raise

    @property
    def _ends_at(self) -> float:
        """The end of the lease, up to which a release goes on in the background."""
        return max(self.deadline, time.monotonic()) + self.options.margin_seconds

    async def _leave(self, call: Call, until: float, is_in_background: bool = False) -> bool:
        """Send the release until a server has replied, or the time is over."""

        async def once(end: float) -> bool:
            words = self._last_words()
            count = await self._commands.ask(self.options.keys[0], words, call, end)
            # If a reply was lost, the command before may have released the lock.
            may_have = call.unanswered > 0 and time.monotonic() < self.deadline
            return bool(count == len(self.options.keys) or may_have)

        try:
            is_held = await self._commands.retry(once, call, until, is_in_background)
            await self.close()
            return is_held
        finally:
            if is_in_background:
                await self.close()

    def _last_words(self) -> Any:
        rest = self._stays_until - time.monotonic()
        if rest > 0:
            return self.options.release_after(self.token, rest)
        if self.is_unclear:
            # A late command has the lease of the acquire, which an extend may have made shorter.
            return self.options.leave(self.token, self.options.longest_trace)
        return self.options.release(self.token)

    async def is_owned(self) -> bool:
        lefts = await self._commands.of_each_key(self.options.keys, "LOCK.CHECK", self.token)
        return bool(min(lefts) > 0)


class GrantBase:
    """A grant of a lock. Whoever has it may extend or release it."""

    def __init__(self, lock: Any, hold: Hold) -> None:
        self._hold = hold
        # The lock that was acquired, and its keys.
        self.lock = lock
        self.keys = hold.options.keys
        # The fencing token: greater than that of every earlier grant.
        self.fence = hold.fence
        # The token, which lets any client extend or release this grant.
        self.token = hold.token.decode("utf-8", "surrogateescape")
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
        if self._hold.options.on_lost is not None:
            self._hold.io.tell(self._hold.options.on_lost, self)

    async def _exit(self, error: BaseException | None) -> None:
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
