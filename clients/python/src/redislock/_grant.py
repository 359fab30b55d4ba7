"""One grant of a lock."""

import math
import time
from typing import Callable, Optional

from ._connections import Kept


def limit_of(blocking: bool, timeout: Optional[float]) -> float:
    """Return the end of a wait on the monotonic clock, or the past if there is no wait."""
    if not blocking:
        return -math.inf
    if timeout is None or timeout < 0:
        return math.inf
    return time.monotonic() + timeout


class Grant:
    """A grant, from the request for it to its end. Times are those of the monotonic clock."""

    def __init__(self, kept: Kept, holds: int) -> None:
        self.kept = kept
        self.holds = holds
        self.fence = 0
        # True if the wait was given up, the lock was lost, or the lock was released.
        self.given_up = False
        self.lost = False
        self.given_back = False
        # Cancels the next renewal or the next check of the lease.
        self.cancel_alarm: Callable[[], None] = lambda: None

    def prolong(self, lease: float, asked_at: float) -> None:
        """Set the lease, counted from the request, because the server counts from then or later."""
        self.lease = lease
        self.ends_at = asked_at + lease
        self.renew_at = asked_at + lease / 3

    @property
    def is_over(self) -> bool:
        return self.lost or time.monotonic() >= self.ends_at
