"""A thread that runs due callbacks. A callback must never block."""

import bisect
import functools
import itertools
import math
import threading
import time
from typing import Callable, List, Optional, Tuple

# Time, number, callback. The number orders alarms of the same time, because callbacks can't be
# compared.
Alarm = Tuple[float, int, Callable[[], None]]


class Clock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Sorted by time.
        self._due: List[Alarm] = []
        self._numbers = itertools.count()
        # The time at which the thread looks again; None while there is no thread.
        self._looks_at: Optional[float] = None

    def at(self, when: float, act: Callable[[], None]) -> Callable[[], None]:
        """Schedule a callback at a time of the monotonic clock. Return its cancel function."""
        alarm = (when, next(self._numbers), act)
        with self._changed:
            bisect.insort(self._due, alarm)
            if self._looks_at is None:
                self._looks_at = -math.inf
                threading.Thread(target=self._run, name="redislock clock", daemon=True).start()
            elif when < self._looks_at:
                self._changed.notify()
        return functools.partial(self._forget, alarm)

    def _forget(self, alarm: Alarm) -> None:
        # perf: The thread isn't woken, because most locks are released and acquired again long
        # before anything is due.
        with self._changed:
            place = bisect.bisect_left(self._due, alarm)
            if self._due[place : place + 1] == [alarm]:
                del self._due[place]

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._looks_at = None
                    return
                self._looks_at = self._due[0][0]
                left = self._looks_at - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                act = self._due.pop(0)[2]
            act()
