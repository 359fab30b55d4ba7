"""The part of locks that is specific to threads. Its coroutines block the calling thread."""

import math
import threading
import time
from typing import Any, Callable, Coroutine, Sequence, TypeVar

from redis import exceptions

from ._clock import Clock
from ._request import Key, Words

T = TypeVar("T")


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread. It must never wait for an event loop."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop")


class Condition(threading.Condition):
    async def until(self, is_so: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until the condition is true or the time is over. Return True if it is true."""
        return self.wait_for(is_so, min(seconds, threading.TIMEOUT_MAX))


class Mutex:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: Any) -> None:
        self._lock.release()


class Threads:
    condition = Condition
    mutex = Mutex

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Make a new clock, because a forked process has no thread of the old one."""
        self.clock = Clock()

    def me(self) -> threading.Thread:
        """Return the owner of a lock that is acquired now."""
        return threading.current_thread()

    def loop(self) -> None:
        """Return None: connections of threads belong to no event loop."""

    def at(self, when: float, act: Callable[[], None]) -> Callable[[], None]:
        """Schedule a callback at a time of the monotonic clock. Return its cancel function."""
        return self.clock.at(when, act)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work in the background."""
        self._in_thread(run, work)

    def tell(self, on_lost: Callable[[Any], Any], lock: Any) -> None:
        self._in_thread(on_lost, lock)

    def _in_thread(self, act: Callable[[Any], Any], what: Any) -> None:
        threading.Thread(target=act, args=(what,), name="redislock", daemon=True).start()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end."""
        return await work

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def done(self, result: T) -> T:
        """Return the result of a call of redis-py. In redis.asyncio it is awaited."""
        return result

    async def node(self, cluster: Any, key: Key) -> Any:
        """Return the connection pool of the node that serves a key."""
        return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool

    async def exchange(self, link: Any, commands: Sequence[Words], seconds: float) -> Any:
        """Send commands, and return the reply to the last one."""
        limit = time.monotonic() + seconds
        for words in commands:
            link.send_command(*words)
            # In parts, because no socket takes an infinite time limit.
            while not link.can_read(timeout=max(0.0, min(limit - time.monotonic(), 60.0))):
                if time.monotonic() >= limit:
                    raise exceptions.TimeoutError("no answer in time")
            answer = link.read_response()
        return answer

    async def close(self, link: Any) -> None:
        link.disconnect()
