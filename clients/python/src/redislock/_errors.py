"""Errors, and which of them let a command be sent again."""

from typing import Optional

from redis import exceptions


class RedisLockError(Exception):
    """The base of all errors of this package."""


class NotAcquired(RedisLockError):
    """The lock wasn't granted to ``with`` in time."""


class LockLost(RedisLockError):
    """The lock was lost before its release, or before a repeated acquire."""


class Cancelled(RedisLockError):
    """The wait was ended by ``cancel()``, by LOCK.CANCEL, or by another wait with this token."""


class Deadlock(RedisLockError):
    """The server refused a wait that would never end."""


# Errors of a server that can't be reached, isn't ready, or isn't the right node at the moment.
_PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    OSError,
)
_FINAL = (exceptions.AuthenticationError, exceptions.AuthorizationError)

# The server's error to its blocked clients when it becomes a replica.
_DEMOTED = "UNBLOCKED force unblock"


def final(error: Exception) -> Optional[Exception]:
    """Return the error to raise to the caller, or None if the command should be sent again."""
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
    """Return True if the key holds a value that is no lock."""
    return str(error).startswith("WRONGTYPE")
