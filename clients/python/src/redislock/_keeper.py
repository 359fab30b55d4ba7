"""The grants that are held, and when each of them needs attention."""

from __future__ import annotations

import math
from typing import Any


class Keeper:
    """Renews grants, and notices their ends. The subclasses do so in a thread or an event loop."""

    def __init__(self) -> None:
        self.held: set[Any] = set()
        self._looks_at = math.inf

    def wake(self) -> None:
        """Let the keeper look now."""
        raise NotImplementedError

    def hold(self, grant: Any) -> None:
        # perf: Most locks are released long before anything is due, so the keeper isn't woken for
        # a grant that is due after its next look.
        self.held.add(grant)
        if grant.due < self._looks_at:
            self.wake()

    def look(self) -> float:
        """Do what is due. Return when the next thing is due."""
        # Until all are seen, a new grant wakes the keeper again.
        self._looks_at = math.inf
        self._looks_at = min([it.look_after() for it in list(self.held)], default=math.inf)
        return self._looks_at
