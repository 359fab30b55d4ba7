"""Hooks for logs, metrics and traces."""

from __future__ import annotations

import logging
from typing import Any

LOG = logging.getLogger("redislock")


class Observer:
    """Hooks that do nothing, except ``unavailable``, which logs a warning. Override what you need.

    A hook must return quickly, because it runs in the thread or task that met the event. If a hook
    raises, the library logs that and goes on.
    """

    def waited(self, lock: Any, seconds: float, outcome: str) -> None:
        """Told after an acquire that didn't get the lock at once.

        ``outcome`` is "granted", "not acquired", "cancelled" or "failed".
        """

    def granted(self, grant: Any) -> None:
        """Told after each grant."""

    def lost(self, grant: Any) -> None:
        """Told once for each loss, in the background."""

    def unavailable(self, error: Exception) -> None:
        """Told once for each outage that ends no call: while a call waits without a limit, or in
        the background."""
        LOG.warning("%s", error)


def tell(hook: Any, *facts: Any) -> Any:
    """Call a hook. Log its exception."""
    try:
        return hook(*facts)
    except Exception:
        LOG.exception("a hook failed")
