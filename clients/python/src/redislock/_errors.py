"""What can go wrong, and whether the same command is worth sending again."""

from typing import Optional

from redis import exceptions


class RedisLockError(Exception):
    """What all errors of this package have in common."""


class NotAcquired(RedisLockError):
    """``with`` didn't get the lock."""


class LockLost(RedisLockError):
    """The lock was lost while ``with`` had it."""


class Cancelled(RedisLockError):
    """The wait was given up: by ``cancel()``, by LOCK.CANCEL, or by another wait with this token."""


class Deadlock(RedisLockError):
    """The server refused a wait that would never end."""


# A server that can't be reached, isn't ready, or isn't the one to ask for the moment.
_PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    OSError,
)
_FINAL = (exceptions.AuthenticationError, exceptions.AuthorizationError)

# What the server says to who is blocked as it becomes a replica.
_DEMOTED = "UNBLOCKED force unblock"


def final(error: Exception) -> Optional[Exception]:
    """What this error means to the caller; nothing where the same command is to be sent again."""
    text = str(error)
    if isinstance(error, _FINAL):
        return error
    if isinstance(error, _PASSING) or text.startswith(_DEMOTED):
        return None
    if text.startswith("UNBLOCKED"):
        return Cancelled(text)
    if text.startswith("DEADLOCK"):
        return Deadlock(text)
    return error


def is_of_another_type(error: Exception) -> bool:
    """Whether the key holds something that is no lock."""
    return str(error).startswith("WRONGTYPE")
