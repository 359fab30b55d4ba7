"""One acquire: it asks, it waits, and it leaves if it ends without a grant.

The states are those of docs/internals/clients.md. Every method that takes time is a coroutine. A
task awaits it. A thread runs it to its end with ``_threads.run``, and is blocked meanwhile.
"""

import math
import time
from typing import Any, Optional

from ._commands import FIRST_PAUSE_SECONDS, Call, Commands, pauses
from ._errors import NotReplicated, Unavailable
from ._grant import Hold
from ._options import Options

# The time after the limit in which a reply still counts.
GRACE_SECONDS = 0.1
# The longest time without a sign that the server lives, while a call waits.
SIGN_OF_LIFE_SECONDS = 2.0
# The mark of a token that has no command on its way.
SHORTEST_LEAVE_SECONDS = 0.001


class Acquire:
    """An acquire of one token until a limit. A limit of 0 asks without waiting."""

    def __init__(
        self, commands: Commands, options: Options, token: bytes, limit: float, stop: Any
    ) -> None:
        self._commands = commands
        self._io = commands.io
        self._options = options
        self._key = options.keys[0]
        self._call = Call(token, stop)
        self._is_try = limit == 0
        self._began = time.monotonic()
        self._until = self._began + (limit or commands.command_timeout)
        self._crowd = self._io.crowds.join(options.keys)
        # A message and its event, if tasks share the connections on which they wait.
        blocks = self._io.blocks or options.replicas is not None
        self._bell: Any = None if blocks or self._is_try else self._io.bell()
        # True if the latest reply was "not now", and nothing failed since.
        self._is_refused = False
        # True if the server may have a place or a grant of this token.
        self._is_known = False
        # True if the lock wasn't granted at once.
        self.has_waited = False
        # True if another process may use the token, so it must not be turned away later.
        self.is_shared_token = False

    async def run(self) -> Optional[Hold]:
        """Return the grant, or None if the server said "not now" until the limit."""
        hold, is_in = None, False
        try:
            if not self._is_try:
                is_in = await self._crowd.enter(self._until, self._call.stop)
                if not is_in:
                    self._end_outside()
                    return None
            hold = await self._ask_until_granted()
            if hold is not None and self._options.session:
                await hold.tie(self._until + self._grace, self._call.stop)
        except BaseException as error:
            self._leave(is_told=isinstance(error, Unavailable))
            raise
        finally:
            if is_in:
                self._crowd.leave()
            if self._bell is not None:
                self._io.silence(self._bell[0])
        if hold is None:
            self._leave()
        return hold

    @property
    def _grace(self) -> float:
        """The time after the limit: the server replies to REPLICAS within the command timeout."""
        waits_for_replicas = self._options.replicas is not None
        return GRACE_SECONDS + self._commands.command_timeout * waits_for_replicas

    def _end_outside(self) -> None:
        """End an acquire whose limit was over before it could ask."""
        self.has_waited = True
        # The acquires that ask hear from the server at each sign of life, and note failures.
        longest = SIGN_OF_LIFE_SECONDS + self._commands.command_timeout
        if self._crowd.replied_at < self._began - longest:
            raise Unavailable("no answer from the server to the acquires before this one")

    async def _ask_until_granted(self) -> Optional[Hold]:
        following = pauses()
        asked_at, cause = -math.inf, None
        while True:
            try:
                if self._is_refused:
                    await self._wait(asked_at)
                    if time.monotonic() >= self._until:
                        return None
                asked_at = time.monotonic()
                reply = await self._ask(asked_at)
            except Unavailable as fault:
                if time.monotonic() >= self._until and fault.is_late and self._is_refused:
                    return None
                self._is_refused, self.has_waited = False, True
                if time.monotonic() < self._until or not fault.is_late:
                    # The end of a limit says nothing about the server.
                    self._crowd.replied_at = -math.inf
                if self._until == math.inf:
                    self._commands.report(fault)
                # A last try that had little time says nothing about the cause.
                if cause is None or self._until - asked_at > FIRST_PAUSE_SECONDS:
                    cause = fault
                await self._commands.pause(next(following), self._call, self._until, cause)
                continue
            following, cause = pauses(), None
            self._crowd.replied_at = time.monotonic()
            if isinstance(reply, list):
                lease = self._options.first_lease
                if time.monotonic() - asked_at <= lease / 3:
                    return self._hold(reply, asked_at, lease)
                # The grant may be over. If it isn't, the server sets its lease anew.
                continue
            self._is_refused = True
            if self._is_try:
                return None
            self.has_waited = True

    async def _ask(self, asked_at: float) -> Any:
        """Ask once. Note whether the server may know this token afterwards."""
        was_known, self._is_known = self._is_known, True
        unanswered = self._call.unanswered
        left, timeout = self._until - asked_at, self._commands.command_timeout
        waits_for_replicas = self._options.replicas is not None
        end = self._until + (0 if self._is_try and not waits_for_replicas else self._grace)
        by, keeps_place = asked_at + self._commands.attempt_seconds, True
        if self._bell is not None:
            channel = self._io.channel(self._commands.servers, self._key)
            words = self._options.queue(self._call.token, left, channel, self._bell[0])
        elif self._is_try or not self.has_waited:
            words, keeps_place = self._options.acquire(self._call.token, timeout), False
        else:
            block = min(SIGN_OF_LIFE_SECONDS, self._options.first_lease / 3, left)
            words = self._options.wait_for(self._call.token, block, left, timeout)
            by, keeps_place = by + block, block < left
        by += timeout * waits_for_replicas
        try:
            reply = await self._commands.ask(
                self._key, words, self._call, min(by, end), is_of_waiter=not self._is_try
            )
        except Exception as error:
            if self._call.unanswered == unanswered and not isinstance(error, NotReplicated):
                self._is_known = was_known
            raise
        if not isinstance(reply, list):
            # A command before may be executed after this one.
            self._is_known = keeps_place or unanswered > 0 or self._call.unanswered > 0
        return reply

    async def _wait(self, asked_at: float) -> None:
        """Wait for the message, or until the server must hear of this waiter again.

        After a LOCK.WAIT there is nothing to wait for.
        """
        if self._bell is None:
            return
        third = min(self._options.keep, self._options.first_lease) / 3
        until = min(asked_at + min(SIGN_OF_LIFE_SECONDS, third), self._until)
        try:
            await self._io.hear(self._commands.servers, self._key, self._bell[1], until)
        except Exception as error:
            failure = self._commands.failed(error, None, self._call, until - asked_at)
            raise failure from failure.__cause__

    def _hold(self, reply: Any, asked_at: float, lease: float) -> Hold:
        hold = Hold(self._commands, self._options, self._call.token, int(reply[1]))
        hold.is_unclear = self._call.unanswered > 0 and not self.is_shared_token
        hold.prolong(lease, asked_at)
        return hold

    def _leave(self, is_told: bool = False) -> None:
        """End what the server may have of this token, in the background."""
        if not self._is_known:
            return
        longest = self._options.longest_trace
        is_unclear = self._call.unanswered > 0 and not self.is_shared_token
        words = self._options.leave(
            self._call.token, longest if is_unclear else SHORTEST_LEAVE_SECONDS
        )
        call = Call(self._call.token)

        async def once(end: float) -> None:
            await self._commands.ask(self._key, words, call, end)

        end = time.monotonic() + longest
        self._commands.go_on(self._commands.retry(once, call, end, not is_told))
