"""Locks and their factory, written once for threads and for tasks."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ._acquire import Acquire
from ._commands import Call, Commands
from ._errors import Cancelled, NotAcquired
from ._grant import HELD, GrantBase, Hold
from ._observer import Observer, tell
from ._options import Key, Options, checked_token, is_free, milliseconds, names_of

G = TypeVar("G", bound=GrantBase)


class LockBase(Generic[G]):
    """A lock: keys and options. All threads and tasks may share it."""

    _grant_class: type[G]

    def __init__(self, locks: LocksBase[Any, Any], options: Options) -> None:
        self._locks = locks
        self._options = options
        self.keys = options.keys
        # The grants of ``with``, and the threads or tasks that entered it.
        self._entered: list[tuple[Any, G]] = []

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return f"<{name} {self._options.keys!r}>"

    async def _acquire(
        self, timeout: float | None = None, stop: Any = None, token: bytes | None = None
    ) -> G | None:
        limit = math.inf
        if timeout is not None:
            limit = milliseconds("timeout", timeout, zero=True) / 1000
        elif self._options.wait is not None:
            limit = self._options.wait
        locks, began = self._locks, time.monotonic()
        locks._io.begin()
        acquire = Acquire(locks._commands, self._options, limit, stop, token)
        outcome, hold = "failed", None
        try:
            hold = await acquire.run()
            outcome = "not acquired" if hold is None else "granted"
        except BaseException as error:
            if isinstance(error, Cancelled) or not isinstance(error, Exception):
                outcome = "cancelled"
            raise
        finally:
            if acquire.has_waited or hold is None:
                tell(locks._observer.waited, self, time.monotonic() - began, outcome)
        return None if hold is None else await self._granted(hold)

    async def _granted(self, hold: Hold) -> G:
        grant = self._grant_class(self, hold)
        try:
            self._locks._io.keeper.hold(hold)
        except BaseException:
            # No thread can be started that renews it.
            with suppress(Exception):
                await hold.release()
            raise
        tell(self._locks._observer.granted, grant)
        return grant

    async def _is_locked(self) -> bool:
        infos = await self._locks._commands.of_each_key(self.keys, "LOCK.INFO", "WAITERS", 0)
        return not all(is_free(info) for info in infos)

    def _enter(self, grant: G | None) -> G:
        if grant is None:
            raise NotAcquired("somebody else had the lock all the time")
        self._entered.append((self._locks._io.me(), grant))
        return grant

    def _left(self) -> G:
        """Return the latest grant of ``with`` in this thread or task."""
        me = self._locks._io.me()
        # A copy, because other threads enter and leave meanwhile.
        entered = list(self._entered)
        mine = [it for it in entered if it[0] is me]
        # A fixture may enter in one task and leave in another.
        ended = [it for it in entered if not self._locks._io.lives(it[0])]
        entry = (mine or ended or entered)[-1]
        self._entered.remove(entry)
        return entry[1]


L = TypeVar("L", bound=LockBase[Any])


class LocksBase(Generic[L, G]):
    """A factory of locks with the settings of a client."""

    _lock_class: type[L]
    _client_classes: Any
    _io_class: Any

    def __init__(
        self, client: Any, *, command_timeout: float = 1.0, observer: Observer | None = None
    ) -> None:
        """Make it with the client's settings. Nothing connects before the first command.

        :param command_timeout: the longest time, in seconds, of each call that doesn't wait for a
            lock, with connecting and sending again; more than 0. Default: 1.
        :param observer: hooks for logs and metrics. Default: None, which logs outages.
        """
        if not isinstance(client, self._client_classes):
            names = " or ".join(f"{it.__module__}.{it.__qualname__}" for it in self._client_classes)
            raise TypeError(f"client must be a {names}")
        if observer is not None and not isinstance(observer, Observer):
            raise TypeError("observer must be a redislock.Observer")
        seconds = milliseconds("command_timeout", command_timeout) / 1000
        self._io = self._io_class()
        self._observer = observer or Observer()
        self._commands = Commands(client, self._io, seconds, self._observer)
        _ALL.add(self)

    def lock(self, keys: Key | Sequence[Key], lease: float = 30.0, **options: Any) -> L:
        """Return a lock on a key, or on several keys that are granted together or not at all.

        Times are in seconds, and rounded up to whole milliseconds. A wrong argument raises
        ``ValueError`` or ``TypeError`` that names it.

        :param keys: ``str`` or ``bytes``, one or several. In a cluster all in one slot.
        :param lease: how long others wait if this process dies; more than 0. Default: 30.
        :param wait: how long ``acquire()`` and ``with`` wait; 0 or more. Default: None, no limit.
        :param shared: True if shared holders admit each other. Default: False.
        :param limit: a semaphore with that many permits, 1 to 2**32 - 1. Default: None.
        :param permits: how many permits a grant takes, 1 to ``limit``. Default: None, 1.
        :param session: True if a grant ends with its connection. Default: False.
        :param keep: how long the server keeps the place of a waiter that it doesn't hear of.
            Default: 10.
        :param renew: True to renew the lease at a third of it. Default: True.
        :param margin: how long before the end of the lease a grant counts as lost, so that the
            program can stop before anybody else has the lock; 0 or more, and less than ``lease``.
            Default: None, a tenth of the lease, and at most 1.
        :param max_hold: how long the lease is renewed, from the grant. Default: 86400, a day. None
            has no end.
        :param at_least: after the release the lock stays held until that long after the grant.
            Default: 0.
        :param data: what LOCK.INFO shows of this holder, at most 1024 bytes. Default: None.
        :param replicas: how many replicas must acknowledge the grant within the command timeout, 1
            to 1000; otherwise ``NotReplicated``. Default: None.
        :param on_lost: called with the grant, once for each loss. Default: None.
        :param reentrant: for threads: True if the thread that holds the lock may acquire it again,
            and releases it as often. All reentrant locks of one kind on the same keys count
            together. Default: False.
        """
        checked = Options(names_of(keys), lease, **options)
        if checked.reentrant and not self._io.blocks:
            raise TypeError("reentrant is an option for threads")
        return self._lock_class(self, checked)

    async def _adopt(self, keys: Any, token: Any, fence: int, options: Any) -> G | None:
        lock = self.lock(keys, **options)
        hold = Hold(self._commands, lock._options, checked_token(token), fence)
        # A command of the first process may still arrive.
        hold.is_unclear = True
        until = time.monotonic() + self._commands.command_timeout
        if not await hold.extend_until(lock._options.first_lease, until):
            return None
        if lock._options.session and not await hold.confirm(Call(hold.token), until):
            return None
        return await lock._granted(hold)  # type: ignore[no-any-return]

    async def _release_all(self) -> int:
        count = 0
        failure: Exception | None = None
        until = time.monotonic() + self._commands.command_timeout
        for hold in list(self._io.keeper.held):
            try:
                count += hold.state == HELD and await hold.release(until)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        return count

    async def _close(self) -> None:
        await self._io.close(self._commands.command_timeout)

    def _forked(self) -> None:
        """Forget the grants in a forked process, because the parent has them."""
        for hold in list(self._io.keeper.held):
            hold.abandon()
        self._io.forget()


_ALL: weakref.WeakSet[LocksBase[Any, Any]] = weakref.WeakSet()


def _forked() -> None:
    for locks in list(_ALL):
        locks._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
