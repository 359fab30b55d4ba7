"""The drop-ins for redis-py's ``Lock``, written once for threads and for tasks.

A waiter is served in its turn instead of polling every ``sleep`` seconds. A key that an old lock of
redis-py holds counts as held, and only then is ``sleep`` used.
"""

from __future__ import annotations

import math
import time
import weakref
from typing import Any, Literal, NoReturn

from redis.exceptions import LockNotOwnedError, ResponseError

from ._commands import Call
from ._errors import Unavailable
from ._locks import LocksBase
from ._options import is_free

# The longest lease, which stands for a lock without a timeout.
ENDLESS_SECONDS = (2**53 - 1) / 1000

_LOCKS: weakref.WeakKeyDictionary[Any, LocksBase[Any, Any]] = weakref.WeakKeyDictionary()


class DropIn:
    """A lock with the parameters and exceptions of redis-py's ``Lock``."""

    _locks_class: type[Any]
    name: Any
    redis: Any
    local: Any
    timeout: Any
    sleep: float
    blocking: Any
    blocking_timeout: Any

    def register_scripts(self) -> None:
        """Do nothing, because this lock uses no scripts."""

    @property
    def _locks(self) -> LocksBase[Any, Any]:
        if self.redis not in _LOCKS:
            # A proxy, because the dictionary drops a client only when nothing else refers to it.
            _LOCKS[self.redis] = self._locks_class(weakref.proxy(self.redis))
        return _LOCKS[self.redis]

    async def _acquire(
        self,
        sleep: float,
        blocking: bool | None,
        blocking_timeout: float | None,
        token: str | bytes | None,
    ) -> bool:
        blocking = self.blocking if blocking is None else blocking
        timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        is_chosen = token is not None
        token = self.redis.get_encoder().encode(token) if is_chosen else None
        lock = self._locks.lock(
            self.name, self.timeout or ENDLESS_SECONDS, renew=False, max_hold=None
        )
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            waits = max(0.0, limit - time.monotonic()) if blocking else 0.0
            # The server would grant a lock again to the token that holds it.
            if not is_chosen or await self._ask("LOCK.CHECK", token) == 0:
                is_granted = await self._acquire_once(lock, waits, token)
                if is_granted:
                    # A late release of a chosen token could release the next grant of that token.
                    self.local.release_later = 0.0 if is_chosen else lock._options.lease
                if is_granted is not None:
                    return is_granted
            if not blocking or time.monotonic() + sleep > limit:
                return False
            await self._locks._io.pause(time.monotonic() + sleep, None)

    async def _acquire_once(self, lock: Any, seconds: float, token: Any) -> bool | None:
        """Return True if the lock was granted, or None if the key holds a value of another type."""
        try:
            grant = await lock._acquire(seconds if seconds < math.inf else None, token=token)
        except ResponseError as error:
            _no_lock(error)
            return None
        # The drop-in releases it by its token.
        if grant is not None:
            self.local.token = grant._hold.token
            self.local.last_words = grant._hold._last_words()
            grant.detach()
        return grant is not None

    async def _is_locked(self) -> bool:
        info = await self._ask("LOCK.INFO", "WAITERS", 0)
        return info == 0 or not is_free(info)

    async def _is_owned(self) -> bool:
        token = self.local.token
        return token is not None and await self._ask("LOCK.CHECK", token) > 0

    async def _release(self, token: Any) -> None:
        """Release by a token. If no server is reached, go on in the background for a while."""
        commands, call, now = self._locks._commands, Call(), time.monotonic()
        # Another thread goes on with them, and has no last words of its own.
        words = getattr(self.local, "last_words", ())
        if token not in words:
            words = ("LOCK.RELEASE", self.name, token)
        try:
            count = await commands.send(self.name, words, call, now + commands.command_timeout)
        except Unavailable:
            end = now + getattr(self.local, "release_later", 0.0)
            commands.go_on(commands.send(self.name, words, call, end, True))
            raise
        except ResponseError as error:
            count = _no_lock(error)
        # If a reply was lost, the command before may have released the lock.
        if count != 1 and not call.unanswered:
            self._refuse("release")

    async def _extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        left_ms = 0 if replace_ttl else await self._ask("LOCK.CHECK", self.local.token)
        return await self._set_lease(left_ms + int(additional_time * 1000), "extend")

    async def _reacquire(self) -> Literal[True]:
        return await self._set_lease(int((self.timeout or ENDLESS_SECONDS) * 1000), "reacquire")

    async def _set_lease(self, lease_ms: int, verb: str) -> Literal[True]:
        if await self._ask("LOCK.EXTEND", self.local.token, "PX", lease_ms) != 1:
            self._refuse(verb)
        return True

    async def _ask(self, command: str, *words: Any) -> Any:
        """Return the reply to a command, or 0 if the key holds a value of another type."""
        try:
            (reply,) = await self._locks._commands.of_each_key([self.name], command, *words)
            return reply
        except ResponseError as error:
            return _no_lock(error)

    def _refuse(self, verb: str) -> NoReturn:
        error: Any = LockNotOwnedError(f"Cannot {verb} a lock that's no longer owned")
        # Older versions of redis-py don't take this argument.
        error.lock_name = self.name
        raise error


def _no_lock(error: ResponseError) -> int:
    """Return 0 for the error that the key holds a value that is no lock. Raise any other error."""
    if not str(error).startswith("WRONGTYPE"):
        raise error
    return 0
