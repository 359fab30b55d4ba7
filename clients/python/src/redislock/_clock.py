"""A thread that does what is due. It must never wait for anything else."""

import functools
import heapq
import itertools
import threading
import time
from typing import Any, Callable, List

# So many that are not due any more are kept before they are thrown out.
FORGOTTEN = 100


class Clock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Each a time, a number of its own, and what is done then, if anything.
        self._due: List[List[Any]] = []
        self._numbers = itertools.count()
        self._forgotten = 0
        self._runs = False

    def at(self, when: float, act: Callable[[], None]) -> Callable[[], None]:
        """Has something done at a time of the monotonic clock. What is returned prevents it."""
        alarm = [when, next(self._numbers), act]
        with self._changed:
            heapq.heappush(self._due, alarm)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="redislock clock", daemon=True).start()
            elif self._due[0] is alarm:
                self._changed.notify()
        return functools.partial(self._forget, alarm)

    def _forget(self, alarm: List[Any]) -> None:
        with self._changed:
            if alarm[2] is None:
                return
            alarm[2] = None
            self._forgotten += 1
            if self._forgotten > max(FORGOTTEN, len(self._due) // 2):
                self._due = [alarm for alarm in self._due if alarm[2] is not None]
                heapq.heapify(self._due)
                self._forgotten = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._runs = False
                    return
                left = self._due[0][0] - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                alarm = heapq.heappop(self._due)
                act, alarm[2] = alarm[2], None
                if act is None:
                    self._forgotten -= 1
            if act is not None:
                act()
