"""What locks need of threads: what is awaited here blocks the thread, and is done when it returns."""

import math
import threading
import time
from typing import Any, Callable, Coroutine, Sequence, TypeVar

from redis import exceptions

from ._clock import Clock
from ._request import Key, Words

T = TypeVar("T")


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Does all of it in this thread. Nothing in it ever waits for an event loop."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop")


class Condition(threading.Condition):
    async def until(self, is_so: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Waits for so long. Whether it is so."""
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
        """Begins anew in a process that was forked: the thread of the clock isn't there."""
        self.clock = Clock()

    def me(self) -> threading.Thread:
        """To whom a lock belongs that is acquired now."""
        return threading.current_thread()

    def loop(self) -> None:
        """The event loop in which alone connections can be used that are made now: none."""

    def at(self, when: float, act: Callable[[], None]) -> Callable[[], None]:
        """Has something done at a time of the monotonic clock. What is returned prevents it."""
        return self.clock.at(when, act)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Has something done beside what the caller does."""
        self._in_thread(run, work)

    def tell(self, on_lost: Callable[[Any], Any], lock: Any) -> None:
        self._in_thread(on_lost, lock)

    def _in_thread(self, act: Callable[[Any], Any], what: Any) -> None:
        threading.Thread(target=act, args=(what,), name="redislock", daemon=True).start()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Has something done to its end."""
        return await work

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def done(self, result: T) -> T:
        """What a call of redis-py gave, or what one of redis.asyncio comes to."""
        return result

    async def node(self, cluster: Any, key: Key) -> Any:
        """What knows how connections to the node that has a key are made."""
        return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool

    async def exchange(self, link: Any, commands: Sequence[Words], seconds: float) -> Any:
        """The answer to the last one of some commands."""
        limit = time.monotonic() + seconds
        for words in commands:
            link.send_command(*words)
            # In parts, because no socket takes an endless time limit.
            while not link.can_read(timeout=max(0.0, min(limit - time.monotonic(), 60.0))):
                if time.monotonic() >= limit:
                    raise exceptions.TimeoutError("no answer in time")
            answer = link.read_response()
        return answer

    async def close(self, link: Any) -> None:
        link.disconnect()
