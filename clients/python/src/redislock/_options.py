"""The options of a lock, checked, and the commands that they make."""

import math
import numbers
import secrets
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Tuple, Union

Key = Union[str, bytes]
Words = Tuple[Any, ...]

_MOST_MS = 2**53 - 1


def milliseconds(name: str, seconds: Any, zero: bool = False) -> int:
    """Return a time in whole milliseconds, rounded up. Raise an error that names the argument."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"{name} must be a number of seconds")
    if not (0 <= seconds <= _MOST_MS / 1000 if zero else 0 < seconds <= _MOST_MS / 1000):
        least = "0 or more" if zero else "greater than 0"
        raise ValueError(f"{name} must be {least}, and at most {_MOST_MS // 1000} seconds")
    return min(math.ceil(round(float(seconds) * 1000, 6)), _MOST_MS)


def _whole(name: str, number: Any, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} must be a whole number")
    if not 1 <= number <= most:
        raise ValueError(f"{name} must be 1 to {most}")


def _raw(name: str, value: Any) -> bytes:
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be str or bytes")
    return value.encode() if isinstance(value, str) else value


def names_of(keys: Union[Key, Sequence[Key]]) -> Tuple[Key, ...]:
    if isinstance(keys, (str, bytes)):
        return (keys,)
    try:
        return tuple(keys)
    except TypeError:
        raise TypeError("keys must be str, bytes, or several of them") from None


@dataclass(frozen=True)
class Options:
    """The keys, the token and the options of a lock. Times are in seconds."""

    keys: Tuple[Key, ...]
    lease: float
    wait: Optional[float]
    token: Union[str, bytes] = field(repr=False)
    shared: bool
    limit: Optional[int]
    permits: Optional[int]
    session: bool
    keep: float
    renew: bool
    reentrant: bool
    max_hold: Optional[float]
    at_least: float
    data: Union[str, bytes, None] = field(repr=False)
    replicas: Optional[int]

    @classmethod
    def of(cls, keys: Union[Key, Sequence[Key]], token: Any, **options: Any) -> "Options":
        token = secrets.token_hex(16) if token is None else token
        return cls(keys=names_of(keys), token=token, **options)

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("keys must name at least one key")
        if len({_raw("keys", key) for key in self.keys}) < len(self.keys):
            raise ValueError("keys must differ")
        if not 1 <= len(self.raw_token) <= 256 or self.raw_token == b"*":
            raise ValueError("token must be 1 to 256 bytes, and not '*'")
        for name in ("lease", "keep"):
            milliseconds(name, getattr(self, name))
        milliseconds("at_least", self.at_least, zero=True)
        if self.wait is not None:
            milliseconds("wait", self.wait, zero=True)
        if self.max_hold is not None:
            milliseconds("max_hold", self.max_hold)
        if self.limit is not None:
            _whole("limit", self.limit, 2**32 - 1)
        if self.permits is not None:
            if self.limit is None:
                raise ValueError("permits need a limit")
            _whole("permits", self.permits, self.limit)
        if self.data is not None and len(_raw("data", self.data)) > 1024:
            raise ValueError("data must be at most 1024 bytes")
        if self.replicas is not None:
            _whole("replicas", self.replicas, 1000)

    @property
    def raw_token(self) -> bytes:
        return _raw("token", self.token)

    def _words(self, verb: str, *options: Any) -> Words:
        if len(self.keys) == 1:
            return (f"LOCK.{verb}", self.keys[0], self.token, *options)
        return (f"LOCK.M{verb}", len(self.keys), *self.keys, self.token, *options)

    def _grant(self, lease: float, holds: int) -> Words:
        words: Words = ("PX", milliseconds("lease", lease), "HOLDS", holds)
        if self.shared or self.limit is not None:
            words += ("SHARED",)
        if self.limit is not None:
            words += ("LIMIT", self.limit, "PERMITS", self.permits or 1)
        return words if self.data is None else (*words, "DATA", self.data)

    def _tie(self) -> Words:
        return ("SESSION",) if self.session else ()

    def _replicas(self, within: float) -> Words:
        if self.replicas is None:
            return ()
        return ("REPLICAS", self.replicas, "WITHIN", max(1, int(within * 1000)))

    def acquire(self, lease: float, holds: int, within: float) -> Words:
        return self._words(
            "ACQUIRE", *self._grant(lease, holds), *self._tie(), *self._replicas(within)
        )

    def wait_for(self, lease: float, left: float, within: float) -> Words:
        """Return the WAIT for a time, which may be infinite."""
        block = 0 if left == math.inf else max(1, math.ceil(left * 1000))
        # No KEEP with SESSION, because it would keep the grant after the connection closes.
        keep = self._tie() or ("KEEP", milliseconds("keep", self.keep))
        return self._words("WAIT", *self._grant(lease, 1), "BLOCK", block, *keep, *self._replicas(within))  # fmt: skip

    def queue(self, lease: float, channel: str, message: bytes) -> Words:
        keep = ("KEEP", milliseconds("keep", self.keep))
        return self._words("QUEUE", *self._grant(lease, 1), *keep, "NOTIFY", channel, message)

    def extend(self, lease: float) -> Words:
        return self._words("EXTEND", "PX", milliseconds("lease", lease), *self._tie())

    def release(self, holds: int) -> Words:
        return self._words("RELEASE", "HOLDS", holds)

    def give_back(self, holds: int, rest: float) -> Words:
        """Return the release of all but some holds, or the command that ends the lock later."""
        if rest <= 0:
            return self.release(holds)
        return self._words(
            "EXTEND", "PX", milliseconds("at_least", rest), *(self.session * ("NOSESSION",))
        )

    def cancel(self) -> Words:
        return ("LOCK.CANCEL", self.keys[0], self.token)


def is_free(info: Any) -> bool:
    """Return True if a reply of LOCK.INFO, a flat list, has no holders."""
    return info is None or not dict(zip(info[::2], info[1::2]))[b"holders"]
