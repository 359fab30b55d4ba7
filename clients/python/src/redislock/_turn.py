"""The queue of the threads or tasks that use one lock object."""

import time
from collections import deque
from typing import Any, Deque


class Turn:
    """A mutex that is passed on in the order of the requests."""

    def __init__(self, io: Any) -> None:
        self._io = io
        self._guard = io.guard()
        self._is_taken = False
        self._gates: Deque[Any] = deque()

    async def take(self, call: Any, until: float) -> bool:
        """Wait for the turn. Return False if the time is over first."""
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return True
            gate = self._io.gate()
            self._gates.append(gate)
        call.has_waited = True
        try:
            came = await call.wait(gate, until - time.monotonic())
        except BaseException:
            if not self._withdraw(gate):
                self.give()
            raise
        # The turn may have come after the time was over.
        return came or not self._withdraw(gate)

    def give(self) -> None:
        """Pass the turn on."""
        with self._guard:
            if self._gates:
                self._gates.popleft().open()
            else:
                self._is_taken = False

    def _withdraw(self, gate: Any) -> bool:
        with self._guard:
            if gate not in self._gates:
                return False
            self._gates.remove(gate)
            return True
