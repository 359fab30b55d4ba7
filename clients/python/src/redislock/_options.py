"""The options of a lock, checked, and the commands that they make."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable, Union

Key = Union[str, bytes]
Words = tuple[Any, ...]

_MOST_MS = 2**53 - 1
# The longest time of LEAVE that the server takes.
_LONGEST_LEAVE_SECONDS = 86_400.0
# The longest margin by default.
_MARGIN_SECONDS = 1.0


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


def checked_token(token: Any) -> bytes:
    raw = _raw("token", token)
    if not 1 <= len(raw) <= 256 or raw == b"*":
        raise ValueError("token must be 1 to 256 bytes, and not '*'")
    return raw


def names_of(keys: Key | Iterable[Key]) -> tuple[Key, ...]:
    if isinstance(keys, (str, bytes)):
        return (keys,)
    try:
        return tuple(keys)
    except TypeError:
        raise TypeError("keys must be str, bytes, or several of them") from None


# The options that are times, and whether they may be 0. The second ones may also be None.
_TIMES = {"lease": False, "keep": False, "at_least": True}
_OPTIONAL_TIMES = {"wait": True, "max_hold": False, "margin": True}


@dataclass(frozen=True)
class Options:
    """The keys and the options of a lock. Times are in seconds."""

    keys: tuple[Key, ...]
    lease: float = 30.0
    wait: float | None = None
    shared: bool = False
    limit: int | None = None
    permits: int | None = None
    session: bool = False
    keep: float = 10.0
    renew: bool = True
    margin: float | None = None
    max_hold: float | None = 86_400.0
    at_least: float = 0.0
    data: str | bytes | None = field(default=None, repr=False)
    replicas: int | None = None
    on_lost: Callable[[Any], Any] | None = None
    reentrant: bool = False

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError("keys must name at least one key")
        if len({_raw("keys", key) for key in self.keys}) < len(self.keys):
            raise ValueError("keys must differ")
        for name, zero in {**_TIMES, **_OPTIONAL_TIMES}.items():
            if name in _TIMES or getattr(self, name) is not None:
                milliseconds(name, getattr(self, name), zero)
        if self.margin_seconds >= self.lease:
            raise ValueError("margin must be less than lease")
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
        if self.on_lost is not None and not callable(self.on_lost):
            raise TypeError("on_lost must be callable")

    @property
    def margin_seconds(self) -> float:
        """The time between the deadline and the end of the lease at the server."""
        return min(self.lease / 10, _MARGIN_SECONDS) if self.margin is None else self.margin

    @property
    def longest_hold(self) -> float:
        """The longest time for which the grant is held. A lease that is never renewed has no limit."""
        is_renewed = self.renew or self.session
        return math.inf if self.max_hold is None or not is_renewed else self.max_hold

    @property
    def first_lease(self) -> float:
        return min(self.lease, self.longest_hold + self.margin_seconds)

    @property
    def longest_trace(self) -> float:
        """The longest time for which the server keeps a token's place or grant unasked."""
        return max(self.first_lease, self.keep)

    # --- commands ---------------------------------------------------------------------------------

    def _words(self, verb: str, token: bytes, *options: Any) -> Words:
        if len(self.keys) == 1:
            return (f"LOCK.{verb}", self.keys[0], token, *options)
        return (f"LOCK.M{verb}", len(self.keys), *self.keys, token, *options)

    def _grant(self) -> Words:
        words: Words = ("PX", milliseconds("lease", self.first_lease))
        if self.shared or self.limit is not None:
            words += ("SHARED",)
        if self.limit is not None:
            words += ("LIMIT", self.limit, "PERMITS", self.permits or 1)
        return words if self.data is None else (*words, "DATA", self.data)

    def _keep(self, left: float) -> Words:
        return ("KEEP", milliseconds("keep", min(self.keep, max(left, 0.0) + 1)))

    def acquire(self, token: bytes) -> Words:
        return self._words("ACQUIRE", token, *self._grant())

    def wait_for(self, token: bytes, block: float, left: float) -> Words:
        """Return the WAIT of a part of the time that is left. The last one leaves no place."""
        keep = () if block >= left else self._keep(left)
        block_ms = max(1, math.ceil(block * 1000))
        return self._words("WAIT", token, *self._grant(), "BLOCK", block_ms, *keep)

    def queue(self, token: bytes, left: float, channel: str, message: bytes) -> Words:
        return self._words(
            "QUEUE", token, *self._grant(), *self._keep(left), "NOTIFY", channel, message
        )

    def extend(self, token: bytes, lease: float) -> Words:
        return self._words("EXTEND", token, "PX", milliseconds("lease", lease), "GT")

    def confirm(self, token: bytes, within: float) -> Words:
        """Return the command that has a new grant acknowledged, and tied to its connection."""
        words = self.extend(token, self.first_lease)
        if self.session:
            words += ("SESSION",)
        if self.replicas is not None:
            words += ("REPLICAS", self.replicas, "WITHIN", max(1, int(within * 1000)))
        return words

    def release(self, token: bytes) -> Words:
        return self._words("RELEASE", token)

    def release_after(self, token: bytes, rest: float) -> Words:
        """Return the command that ends the lock later, without its connection."""
        untie = ("NOSESSION",) if self.session else ()
        return self._words("EXTEND", token, "PX", milliseconds("at_least", rest), *untie)

    def leave(self, token: bytes, seconds: float) -> Words:
        leave_ms = milliseconds("lease", min(seconds, _LONGEST_LEAVE_SECONDS))
        return self._words("RELEASE", token, "LEAVE", leave_ms)


def is_free(info: Any) -> bool:
    """Return True if a reply of LOCK.INFO, a flat list, has no holders."""
    return info is None or not dict(zip(info[::2], info[1::2]))[b"holders"]
