"""Distributed locks of the redis-lock module for redis-py: fair, fenced, without polling."""

from ._errors import Cancelled, Deadlock, LockLost, NotAcquired, RedisLockError
from ._sync import Lock, Locks

__all__ = [
    "Cancelled",
    "Deadlock",
    "Lock",
    "LockLost",
    "Locks",
    "NotAcquired",
    "RedisLockError",
]
__version__ = "0.1.0"
