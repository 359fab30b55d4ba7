"""What a lock has been granted."""

import math
import time
from typing import Any, Optional


def limit_of(blocking: bool, timeout: Optional[float]) -> float:
    """When a wait is to end, by the monotonic clock; what lies behind for none."""
    if not blocking:
        return -math.inf
    if timeout is None or timeout < 0:
        return math.inf
    return time.monotonic() + timeout


class Grant:
    """Times are those of the monotonic clock."""

    def __init__(self, fence: int, lease: float, kept: Any, asked_at: float) -> None:
        self.fence = fence
        self.kept = kept
        self.holds = 0
        self.lost = False
        self.given_back = False
        # What looks after it in time.
        self.alarm: Any = None
        self.prolong(lease, asked_at)

    def prolong(self, lease: float, asked_at: float) -> None:
        """The server counts from when it was asked, or later."""
        self.lease = lease
        self.ends_at = asked_at + lease
        self.renew_at = asked_at + lease / 3

    @property
    def is_over(self) -> bool:
        return self.lost or time.monotonic() >= self.ends_at
