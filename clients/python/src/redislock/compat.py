"""redis-py's ``Lock``, with the module's commands: ``redis.lock(name, lock_class=compat.Lock)``.

Waiters are served in their order instead of asking again each ``sleep`` seconds. A key that an old
``redis.lock.Lock`` holds counts as held: only then ``sleep`` is used.
"""

import math
import time
import uuid
import weakref
from typing import Any, Literal, Optional, Union

from redis.exceptions import LockNotOwnedError, ResponseError
from redis.lock import Lock as RedisPyLock

from ._errors import is_of_another_type
from ._request import is_free
from ._sync import Locks

# What stands for no end: the longest lease there is.
ENDLESS_SECONDS = (2**53 - 1) / 1000

_LOCKS: "weakref.WeakKeyDictionary[Any, Locks]" = weakref.WeakKeyDictionary()


def locks_of(client: Any) -> Locks:
    if client not in _LOCKS:
        # A proxy, because the dictionary lets go of a client only when nothing else has it.
        _LOCKS[client] = Locks(weakref.proxy(client))
    return _LOCKS[client]


class Lock(RedisPyLock):
    """Takes what redis-py's takes, and raises what that raises."""

    name: Any
    redis: Any
    local: Any

    def register_scripts(self) -> None:
        """There are none."""

    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Union[str, bytes, None] = None,
    ) -> bool:
        sleep = self.sleep if sleep is None else sleep
        blocking = self.blocking if blocking is None else blocking
        timeout = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        token = self.redis.get_encoder().encode(uuid.uuid4().hex if token is None else token)
        lock = locks_of(self.redis).lock(
            self.name, lease=self.timeout or ENDLESS_SECONDS, token=token, renew=False
        )
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = limit - time.monotonic()
            try:
                waits = left if left < math.inf else None
                if lock.acquire(blocking and left > 0, waits) is None:
                    return False
                lock._let_go()
                self.local.token = token
                return True
            except ResponseError as error:
                if not is_of_another_type(error):
                    raise
            if not blocking or time.monotonic() + sleep > limit:
                return False
            time.sleep(sleep)

    def locked(self) -> bool:
        return not self._is_free()

    def owned(self) -> bool:
        return self.local.token is not None and self._ask("LOCK.CHECK") > 0

    def do_release(self, expected_token: Any) -> None:
        if self._send("LOCK.RELEASE", expected_token) != 1:
            self._refuse("Cannot release a lock that's no longer owned")

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        left_ms = 0 if replace_ttl else self._ask("LOCK.CHECK")
        return self._set_lease(left_ms + int(additional_time * 1000), "extend")

    def do_reacquire(self) -> Literal[True]:
        return self._set_lease(int((self.timeout or ENDLESS_SECONDS) * 1000), "reacquire")

    def _set_lease(self, lease_ms: int, verb: str) -> Literal[True]:
        if self._ask("LOCK.EXTEND", "PX", lease_ms) != 1:
            self._refuse(f"Cannot {verb} a lock that's no longer owned")
        return True

    def _ask(self, command: str, *options: Any) -> int:
        return self._send(command, self.local.token, *options)

    def _send(self, command: str, token: Any, *options: Any) -> int:
        """What a command answers; 0 where the key has something that is no lock of the module."""
        try:
            words = (command, self.name, token, *options)
            return int(locks_of(self.redis).connections.call(self.name, words))
        except ResponseError as error:
            if is_of_another_type(error):
                return 0
            raise

    def _is_free(self) -> bool:
        try:
            words = ("LOCK.INFO", self.name, "WAITERS", 0)
            return is_free(locks_of(self.redis).connections.call(self.name, words))
        except ResponseError as error:
            if is_of_another_type(error):
                return False
            raise

    def _refuse(self, text: str) -> None:
        error: Any = LockNotOwnedError(text)
        # Older versions of redis-py take no such argument.
        error.lock_name = self.name
        raise error
