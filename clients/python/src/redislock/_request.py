"""The words of the commands."""

import math
import secrets
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Tuple, Union

Key = Union[str, bytes]
Words = Tuple[Any, ...]

# How much later than BLOCK an answer may come.
GRACE_SECONDS = 1.0
# How long a wait that is given up is looked after.
CLEANUP_SECONDS = 1.0
# How long after a CANCEL that found nothing a second one is sent: the command that waits may have been
# on its way.
SETTLE_SECONDS = 0.05


def new_token() -> str:
    return secrets.token_hex(16)


def milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def pauses() -> Iterator[float]:
    """How long to wait before each next try."""
    pause = 0.05
    while True:
        yield pause
        pause = min(2 * pause, 1.0)


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    keys: Tuple[Key, ...]
    token: Union[str, bytes]
    shared: bool = False
    limit: Optional[int] = None
    permits: Optional[int] = None
    session: bool = False
    keep: float = 10.0

    @property
    def key(self) -> Key:
        """The one that tells where in a cluster they all are."""
        return self.keys[0]

    def _head(self, verb: str) -> Words:
        if len(self.keys) == 1:
            return (f"LOCK.{verb}", self.key, self.token)
        return (f"LOCK.M{verb}", len(self.keys), *self.keys, self.token)

    def _kind(self) -> Words:
        shared: Words = ("SHARED",) if self.shared else ()
        limit: Words = () if self.limit is None else ("LIMIT", self.limit)
        permits: Words = () if self.permits is None else ("PERMITS", self.permits)
        return (*shared, *limit, *permits)

    def _tie(self) -> Words:
        return ("SESSION",) if self.session else ()

    def acquire(self, lease: float, holds: int) -> Words:
        options = ("PX", milliseconds(lease), "HOLDS", holds)
        return (*self._head("ACQUIRE"), *options, *self._kind(), *self._tie())

    def wait(self, lease: float, holds: int, seconds: float) -> Words:
        block = 0 if seconds == math.inf else milliseconds(seconds)
        options = ("PX", milliseconds(lease), "BLOCK", block, "HOLDS", holds)
        # With SESSION, KEEP would let the grant outlive its connection.
        keep = self._tie() or ("KEEP", milliseconds(self.keep))
        return (*self._head("WAIT"), *options, *self._kind(), *keep)

    def extend(self, lease: float) -> Words:
        return (*self._head("EXTEND"), "PX", milliseconds(lease), *self._tie())

    def release(self, holds_left: int) -> Words:
        return (*self._head("RELEASE"), "HOLDS", holds_left)

    def cancel(self) -> Words:
        return ("LOCK.CANCEL", self.key, self.token)


def is_free(info: Any) -> bool:
    """What an answer of LOCK.INFO says of holders: a map, or a list of names and values."""
    if info is None:
        return True
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2]))
    return not fields[b"holders"]
