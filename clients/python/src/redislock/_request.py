"""The commands of a lock."""

import math
import secrets
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Tuple, Union

Key = Union[str, bytes]
Words = Tuple[Any, ...]

# The longest delay of a reply after BLOCK.
GRACE_SECONDS = 1.0
# The time limit of the cleanup after a wait that is given up.
CLEANUP_SECONDS = 1.0
# The pause between a CANCEL that found nothing and the next one, because the wait may have been in
# flight.
SETTLE_SECONDS = 0.05


def new_token() -> str:
    return secrets.token_hex(16)


def milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))


def pauses() -> Iterator[float]:
    """Yield the pause before each next try."""
    pause = 0.05
    while True:
        yield pause
        pause = min(2 * pause, 1.0)


@dataclass(frozen=True)
class Request:
    """A request for a lock: its keys, its token and its options."""

    keys: Tuple[Key, ...]
    token: Union[str, bytes]
    shared: bool = False
    limit: Optional[int] = None
    permits: Optional[int] = None
    session: bool = False
    keep: float = 10.0

    @property
    def key(self) -> Key:
        """The key that selects the node of a cluster."""
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
        # No KEEP with SESSION, because it would keep the grant after the connection closes.
        keep = self._tie() or ("KEEP", milliseconds(self.keep))
        return (*self._head("WAIT"), *options, *self._kind(), *keep)

    def extend(self, lease: float) -> Words:
        return (*self._head("EXTEND"), "PX", milliseconds(lease), *self._tie())

    def release(self, holds_left: int) -> Words:
        return (*self._head("RELEASE"), "HOLDS", holds_left)

    def cancel(self) -> Words:
        return ("LOCK.CANCEL", self.key, self.token)


def is_free(info: Any) -> bool:
    """Return True if a reply of LOCK.INFO, a map or a flat list, has no holders."""
    if info is None:
        return True
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2]))
    return not fields[b"holders"]
