"""A thread that does what is due. It must never wait for anything else."""

import heapq
import itertools
import threading
import time
from typing import Callable, List, Optional, Tuple

# So many that are not due any more are kept before they are thrown out.
FORGOTTEN = 100


class Alarm:
    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Optional[Callable[[], None]] = act


class Clock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: List[Tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._forgotten = 0
        self._runs = False

    def at(self, when: float, act: Callable[[], None]) -> Alarm:
        """Has something done at a time of the monotonic clock."""
        alarm = Alarm(act)
        with self._changed:
            heapq.heappush(self._due, (when, next(self._numbers), alarm))
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="redislock clock", daemon=True).start()
            elif self._due[0][2] is alarm:
                self._changed.notify()
        return alarm

    def forget(self, alarm: Optional[Alarm]) -> None:
        with self._changed:
            if alarm is None or alarm.act is None:
                return
            alarm.act = None
            self._forgotten += 1
            if self._forgotten > max(FORGOTTEN, len(self._due) // 2):
                self._due = [entry for entry in self._due if entry[2].act is not None]
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
                alarm = heapq.heappop(self._due)[2]
                act, alarm.act = alarm.act, None
                if act is None:
                    self._forgotten -= 1
            if act is not None:
                act()
