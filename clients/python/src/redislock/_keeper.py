"""The grants that are held, and when each of them needs attention."""

import math
import time
from typing import Any, Set

from ._observer import LOG


class Keeper:
    """Renews grants, and notices their ends. The subclasses do so in a thread or an event loop."""

    def __init__(self) -> None:
        self.held: Set[Any] = set()
        self._looks_at = math.inf

    def wake(self) -> None:
        """Let the keeper look now."""
        raise NotImplementedError

    def hold(self, grant: Any) -> None:
        # perf: Most locks are released long before anything is due, so the keeper isn't woken for
        # a grant that is due after its next look.
        if grant.is_ended:
            return
        self.held.add(grant)
        if grant.due < self._looks_at:
            self.wake()

    def look(self) -> float:
        """Do what is due. Return when the next thing is due."""
        # Until all are seen, a new grant wakes the keeper again.
        self._looks_at = math.inf
        now = time.monotonic()
        due = [self._look_after(grant, now) for grant in list(self.held)]
        self._looks_at = min(due, default=math.inf)
        return self._looks_at

    def _look_after(self, grant: Any, now: float) -> float:
        """Do what is due for one grant, so that its failure leaves the other grants alone."""
        if grant.is_ended:
            # A renewal or an extend held it again while it was released.
            self.held.discard(grant)
            return math.inf
        try:
            due: float = grant.look_after(now)
        except Exception:
            LOG.exception("a renewal failed, and is repeated soon")
            due = grant.postpone(now)
        return due
