"""What a lock has been granted."""

import math
import time
from typing import Callable, Optional

from ._connections import Kept


def limit_of(blocking: bool, timeout: Optional[float]) -> float:
    """When a wait is to end, by the monotonic clock; what lies behind for none."""
    if not blocking:
        return -math.inf
    if timeout is None or timeout < 0:
        return math.inf
    return time.monotonic() + timeout


class Grant:
    """One that is asked for, and then held. Times are those of the monotonic clock."""

    def __init__(self, kept: Kept, holds: int) -> None:
        self.kept = kept
        self.holds = holds
        self.fence = 0
        # What became of it: the wait for it given up, the lock lost, or released.
        self.given_up = False
        self.lost = False
        self.given_back = False
        # Prevents that it is looked after.
        self.cancel_alarm: Callable[[], None] = lambda: None

    def prolong(self, lease: float, asked_at: float) -> None:
        """The server counts from when it was asked, or later."""
        self.lease = lease
        self.ends_at = asked_at + lease
        self.renew_at = asked_at + lease / 3

    @property
    def is_over(self) -> bool:
        return self.lost or time.monotonic() >= self.ends_at
