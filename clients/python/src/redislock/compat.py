"""redis-py's ``Lock``, with the module's commands: ``redis.lock(name, lock_class=compat.Lock)``.

Waiters are served in their order instead of polling every ``sleep`` seconds. A key that an old
``redis.lock.Lock`` holds counts as held, and only then is ``sleep`` used.
"""

from __future__ import annotations

from typing import Any, Literal

import redis
from redis.lock import Lock as RedisPyLock

from ._drop_in import DropIn
from ._sync import Locks
from ._threads import run


class Lock(DropIn, RedisPyLock):
    """A lock with the parameters and exceptions of redis-py's ``Lock``."""

    _locks_class = Locks

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        sleep = self.sleep if sleep is None else sleep
        return run(self._acquire(sleep, blocking, blocking_timeout, token))

    def locked(self) -> bool:
        return run(self._is_locked())

    def owned(self) -> bool:
        return run(self._is_owned())

    def do_release(self, expected_token: Any) -> None:
        run(self._release(expected_token))

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        return run(self._extend(additional_time, replace_ttl))

    def do_reacquire(self) -> Literal[True]:
        return run(self._reacquire())


class Redis(redis.Redis):
    """A client whose ``lock`` makes the drop-in, for libraries that call ``client.lock``."""

    lock_class: type[RedisPyLock] = Lock

    def lock(self, name: Any, *args: Any, **options: Any) -> Any:
        options["lock_class"] = options.get("lock_class") or self.lock_class
        return super().lock(name, *args, **options)
