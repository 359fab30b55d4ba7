"""The part of locks that is specific to tasks of an event loop: the counterpart of Threads."""

import asyncio
import inspect
import math
import time
from typing import Any, Callable, Coroutine, List, Sequence, Set, TypeVar

from redis import exceptions

from ._request import Key, Words

T = TypeVar("T")

# Longer than every limit passed to _apart. To redis-py, None means the connection's own limit.
NO_LIMIT = 1e8


class Condition:
    """A condition like that of threads. It locks nothing: no other task runs between two awaits."""

    def __init__(self) -> None:
        self._waiters: List["asyncio.Future[None]"] = []

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...

    async def until(self, is_so: Callable[[], bool], seconds: float = math.inf) -> bool:
        limit = time.monotonic() + seconds
        while not is_so():
            left = limit - time.monotonic()
            if left <= 0:
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await asyncio.wait({waiter}, timeout=None if left == math.inf else left)
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return True

    def notify_all(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)


class Tasks:
    condition = Condition
    mutex = asyncio.Lock

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        # References to running tasks, because an event loop doesn't keep its tasks alive.
        self._running: Set["asyncio.Future[Any]"] = set()

    def me(self) -> Any:
        return asyncio.current_task()

    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def at(self, when: float, act: Callable[[], None]) -> Callable[[], None]:
        # At most an hour, because some loops take no delay of many years. An early call is
        # harmless.
        left = min(max(0.0, when - time.monotonic()), 3600.0)
        return asyncio.get_running_loop().call_later(left, act).cancel

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def tell(self, on_lost: Callable[[Any], Any], lock: Any) -> None:
        told = on_lost(lock)
        if inspect.iscoroutine(told):
            self.start(told)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end, even if the caller is cancelled."""
        return await asyncio.shield(self.start(work))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def done(self, work: Coroutine[Any, Any, T]) -> T:
        return await _apart(work, math.inf)

    async def node(self, cluster: Any, key: Key) -> Any:
        await self.done(cluster.initialize())
        return cluster.get_node_from_key(key)

    async def exchange(self, link: Any, commands: Sequence[Words], seconds: float) -> Any:
        return await _apart(_exchange(link, commands), seconds)

    async def close(self, link: Any) -> None:
        await link.disconnect(nowait=True)


async def _exchange(link: Any, commands: Sequence[Words]) -> Any:
    for words in commands:
        await link.send_command(*words)
        answer = await link.read_response(timeout=NO_LIMIT)
    return answer


async def _apart(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run the work in a separate task, with a time limit.

    Before Python 3.12, asyncio.wait_for, and so redis-py, may swallow the cancellation of the task
    that calls it.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda it: it.cancelled() or it.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=None if seconds == math.inf else seconds)
    except BaseException:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise exceptions.TimeoutError("no answer in time")
    return task.result()
