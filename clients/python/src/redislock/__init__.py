"""Distributed locks of the redis-lock module for redis-py: fair, fenced, without polling."""

from . import _errors
from ._errors import *  # noqa: F403
from ._observer import Observer
from ._sync import Grant, Lock, Locks

__all__ = ["Grant", "Lock", "Locks", "Observer"] + _errors.__all__
__version__ = "0.1.0"
