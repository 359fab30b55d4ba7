"""Errors, and which errors of the server and the network are an outage."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import exceptions

__all__ = ["Cancelled", "Deadlock", "LockLost", "ModuleMissing", "NotAcquired", "NotHeld"]
__all__ += ["NotReplicated", "RedisLockError", "Unavailable"]


class RedisLockError(exceptions.RedisError):
    """The base of all errors of this package."""


class NotAcquired(RedisLockError, exceptions.LockError):
    """``with`` didn't get the lock within its time."""


class LockLost(RedisLockError, exceptions.LockNotOwnedError):
    """The lock was lost before its release."""


class Cancelled(RedisLockError, exceptions.LockError):
    """The wait was ended by its ``cancel`` event, or by LOCK.CANCEL."""


class Deadlock(RedisLockError, exceptions.LockError):
    """The server refused a wait that would never end."""


class NotReplicated(RedisLockError, exceptions.LockError):
    """Too few replicas acknowledged the grant in time. The grant was released."""


class NotHeld(RedisLockError, exceptions.LockError, RuntimeError):
    """``release()`` of a grant that was released before."""


class Unavailable(RedisLockError, exceptions.ConnectionError, exceptions.TimeoutError):
    """No server could execute the command in time. The text says what was wrong last."""

    # True if no reply came in time, and False if something failed.
    is_late = False
    # The node of a cluster that failed.
    address: Any = None


class ModuleMissing(RedisLockError, exceptions.ResponseError):
    """The server hasn't loaded the redis-lock module."""


_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_OUTAGES = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    exceptions.TryAgainError,
    exceptions.OutOfMemoryError,
    OSError,
    asyncio.TimeoutError,
)
# Codes that redis-py, or an older version of it, has no class for.
_OUTAGE_CODES = set("LOADING READONLY MASTERDOWN CLUSTERDOWN TRYAGAIN OOM MISCONF BUSY".split())
# The errors for replies that begin with these words.
_CLASSES = {"UNBLOCKED": Cancelled, "DEADLOCK": Deadlock, "NOREPLICAS": NotReplicated}


def refused(error: BaseException | None) -> BaseException | None:
    """Return the refusal of the user or the password, if that is the reason of an error."""
    while error is not None and not isinstance(error, _REFUSED):
        error = error.__cause__ or error.__context__
    return error


def is_outage(error: BaseException) -> bool:
    """Return True if the same command may succeed later, or at another server."""
    if refused(error) is not None:
        return False
    text = str(error)
    if text.startswith("UNBLOCKED"):
        # A late command of this acquire may have taken over the place.
        return "instance state changed" in text or "took over this place" in text
    if text.startswith("NOREPLICAS"):
        # The error of min-replicas-to-write, not that of the option replicas.
        return "Not enough good replicas" in text
    return isinstance(error, _OUTAGES) or text.split(" ")[0] in _OUTAGE_CODES


def is_late(error: BaseException) -> bool:
    """Return True if no reply came in time, and False if something failed."""
    return isinstance(error, (exceptions.TimeoutError, asyncio.TimeoutError))


def final(error: BaseException, token: bytes) -> BaseException:
    """Return the error for the caller. Its text never has the token."""
    error = refused(error) or error
    text = str(error)
    if token:
        text = text.replace(token.decode("utf-8", "replace"), "<token>")
    if text.lower().startswith("unknown command 'lock."):
        return ModuleMissing("this server hasn't loaded redis-lock")
    if text.startswith("Protocol error: unauthenticated"):
        return exceptions.AuthenticationError("Authentication required.")
    kind = _CLASSES.get(text.split(" ")[0])
    if kind is not None:
        return kind(text)
    return error if text == str(error) else exceptions.ResponseError(text)
