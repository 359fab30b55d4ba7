"""The counterpart of ``redislock.compat`` for ``redis.asyncio``.

Waiters are served in their order instead of polling every ``sleep`` seconds. A key that an old
``redis.lock.Lock`` holds counts as held, and only then is ``sleep`` used.
"""

from __future__ import annotations

from typing import Any, Literal

from redis.asyncio.lock import Lock as RedisPyLock

from ._drop_in import DropIn
from .asyncio import Locks


class Lock(DropIn, RedisPyLock):
    """A lock with the parameters and exceptions of redis-py's ``Lock``."""

    _locks_class = Locks

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        return await self._acquire(self.sleep, blocking, blocking_timeout, token)

    async def locked(self) -> bool:
        return await self._is_locked()

    async def owned(self) -> bool:
        return await self._is_owned()

    async def do_release(self, expected_token: Any) -> None:
        await self._release(expected_token)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        return await self._extend(additional_time, replace_ttl)

    async def do_reacquire(self) -> Literal[True]:
        return await self._reacquire()
