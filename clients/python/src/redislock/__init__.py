"""Distributed locks of the redis-lock module for redis-py: fair, fenced, without polling."""

from ._errors import (
    Cancelled,
    Deadlock,
    LockLost,
    ModuleMissing,
    NotAcquired,
    NotHeld,
    NotReplicated,
    RedisLockError,
    Unavailable,
)
from ._observer import Observer
from ._sync import Grant, Lock, Locks

__all__ = [
    "Cancelled",
    "Deadlock",
    "Grant",
    "Lock",
    "LockLost",
    "Locks",
    "ModuleMissing",
    "NotAcquired",
    "NotHeld",
    "NotReplicated",
    "Observer",
    "RedisLockError",
    "Unavailable",
]
__version__ = "0.1.0"
