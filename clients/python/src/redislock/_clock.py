"""A thread that does what is due. It must never wait for anything else."""

import heapq
import itertools
import threading
import time
from typing import Callable, List, Tuple


class Clock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: List[Tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._runs = False

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Has something done at a time of the monotonic clock."""
        with self._changed:
            entry = (when, next(self._numbers), act)
            heapq.heappush(self._due, entry)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="redislock clock", daemon=True).start()
            elif self._due[0] is entry:
                self._changed.notify()

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
                act = heapq.heappop(self._due)[2]
            act()
