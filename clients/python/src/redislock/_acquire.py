"""One acquire: it asks, it waits, and it leaves if it ends without a grant.

The states are those of docs/internals/clients.md. Every method that takes time is a coroutine. A
task awaits it. A thread runs it to its end with ``_threads.run``, and is blocked meanwhile.
"""

from __future__ import annotations

import math
import secrets
import time
from typing import Any

from ._commands import Call, Commands, pauses
from ._crowd import Crowd
from ._errors import Unavailable
from ._grant import Hold
from ._options import Options

# The time after the limit in which a reply still counts.
GRACE_SECONDS = 0.1
# The longest time without a sign that the server lives, while a call waits.
SIGN_OF_LIFE_SECONDS = 2.0
# The mark of a token that has no command on its way.
SHORTEST_LEAVE_SECONDS = 0.001


class Acquire:
    """An acquire until a limit, by a token of its own. A limit of 0 asks without waiting."""

    def __init__(
        self, commands: Commands, options: Options, limit: float, stop: Any, token: bytes | None
    ) -> None:
        self._commands = commands
        self._io = commands.io
        self._options = options
        self._key = options.keys[0]
        self._is_try = limit == 0
        self._call = Call(token or _new_token(), stop, waits=not self._is_try)
        # True if another process may use the token, so it must not be turned away later.
        self._is_shared_token = token is not None
        self._began = time.monotonic()
        self._until = self._began + (limit or commands.command_timeout)
        self._crowd = self._io.crowds.setdefault(options.keys, Crowd(self._io))
        # A message and its event, if tasks share the connections on which they wait.
        self._bell: Any = None if self._io.blocks or self._is_try else self._io.bell()
        # True if the latest reply was "not now", and nothing failed since.
        self._is_refused = False
        # True if the server may have a place or a grant of this token.
        self._is_known = False
        # True if the lock wasn't granted at once.
        self.has_waited = False

    async def run(self) -> Hold | None:
        """Return the grant, or None if the server said "not now" until the limit."""
        try:
            hold = await (self._ask_until_granted() if self._is_try else self._ask_in_turn())
        except BaseException as error:
            self._leave(is_told=isinstance(error, Unavailable))
            raise
        if hold is None:
            self._leave()
        return hold

    async def _ask_in_turn(self) -> Hold | None:
        turn = self._io.event()
        try:
            if await self._crowd.enter(turn, self._until, self._call.stop):
                return await self._ask_until_granted()
        finally:
            self._crowd.leave(turn)
        self.has_waited = True
        # The acquires that ask hear from the server at each sign of life, and note failures.
        longest = SIGN_OF_LIFE_SECONDS + self._commands.command_timeout
        if self._crowd.replied_at < self._began - longest:
            raise Unavailable("no answer from the server to the acquires before this one")
        return None

    async def _ask_until_granted(self) -> Hold | None:
        following, asked_at = pauses(), -math.inf
        while True:
            try:
                if self._is_refused:
                    await self._wait(asked_at)
                    if time.monotonic() >= self._until:
                        return None
                asked_at = time.monotonic()
                hold = await self._ask(asked_at)
            except Unavailable as fault:
                if time.monotonic() >= self._until and fault.is_late and self._is_refused:
                    return None
                self._is_refused, self.has_waited = False, True
                if time.monotonic() < self._until or not fault.is_late:
                    # The end of a limit says nothing about the server.
                    self._crowd.replied_at = -math.inf
                if self._until == math.inf:
                    self._commands.report(fault)
                await self._commands.pause(next(following), self._call, self._until, fault)
                continue
            following = pauses()
            self._crowd.replied_at = time.monotonic()
            if hold is not None or (self._is_refused and self._is_try):
                return hold
            self.has_waited = True

    async def _ask(self, asked_at: float) -> Hold | None:
        """Ask once. Return the grant if it came in time. Otherwise ask again, or wait."""
        left, by = self._until - asked_at, asked_at + self._commands.attempt_seconds
        token, keeps_place = self._call.token, True
        if self._bell is not None:
            channel = self._io.channel(self._commands.servers, self._key)
            words = self._options.queue(token, left, channel, self._bell[0])
        elif self._is_try or not self.has_waited:
            words, keeps_place = self._options.acquire(token), False
        else:
            block = min(SIGN_OF_LIFE_SECONDS, self._options.first_lease / 3, left)
            words = self._options.wait_for(token, block, left)
            by, keeps_place = by + block, block < left
        end = self._until + (0 if self._is_try else GRACE_SECONDS)
        was_known, unanswered = self._is_known, self._call.unanswered
        self._is_known = True
        try:
            reply = await self._commands.ask(self._key, words, self._call, min(by, end))
        except Exception:
            self._is_known = was_known or self._call.unanswered > unanswered
            raise
        self._is_refused = not isinstance(reply, list)
        if self._is_refused:
            # A command before may be executed after this one.
            self._is_known = keeps_place or self._call.unanswered > 0
            return None
        if time.monotonic() - asked_at > self._options.first_lease / 3:
            # The grant may be over. If it isn't, the server sets its lease anew.
            return None
        hold = Hold(self._commands, self._options, token, int(reply[1]))
        hold.is_unclear = self._is_unclear
        hold.prolong(self._options.first_lease, asked_at)
        if self._options.session or self._options.replicas is not None:
            return hold if await self._confirm(hold) else None
        return hold

    async def _confirm(self, hold: Hold) -> bool:
        """Have a grant acknowledged by replicas, and tied to a connection.

        :raises Unavailable: no reply came. A late tie would end the grant with its connection, so
            the next try has another token.
        """
        now, call = time.monotonic(), self._call
        end = min(now + self._commands.attempt_seconds, self._until + GRACE_SECONDS)
        if self._options.replicas is not None:
            end = now + self._commands.command_timeout + GRACE_SECONDS
        try:
            return await hold.confirm(call, end)
        except Unavailable:
            self._leave()
            self._call, self._is_known = Call(_new_token(), call.stop, call.waits), False
            raise

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
            failure = self._commands.failed(error, None, self._call)
            raise failure from failure.__cause__

    @property
    def _is_unclear(self) -> bool:
        """True if a command of the token may still arrive, and is to be turned away then."""
        return self._call.unanswered > 0 and not self._is_shared_token

    def _leave(self, is_told: bool = False) -> None:
        """End what the server may have of this token, in the background."""
        if not self._is_known:
            return
        longest, call = self._options.longest_trace, Call(self._call.token)
        words = self._options.leave(
            call.token, longest if self._is_unclear else SHORTEST_LEAVE_SECONDS
        )
        end = time.monotonic() + longest
        self._commands.go_on(self._commands.send(self._key, words, call, end, not is_told))


def _new_token() -> bytes:
    return secrets.token_hex(16).encode()
