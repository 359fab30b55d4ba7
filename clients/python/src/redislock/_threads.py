"""The part of locks that is specific to threads. Its coroutines block the calling thread."""

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Coroutine, Dict, List, Optional, Sequence, TypeVar

from redis import exceptions

from ._call import Call
from ._errors import Cancelled, NoAnswer
from ._keeper import Keeper
from ._observer import LOG, tell
from ._options import Words

T = TypeVar("T")

# The most idle connections to one server.
IDLE_CONNECTIONS = 8


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread. It must never wait for an event loop."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop")


def in_thread(act: Callable[..., Any], *args: Any) -> None:
    threading.Thread(target=act, args=args, name="redislock", daemon=True).start()


class Gate:
    def __init__(self) -> None:
        self._changes = threading.Condition()
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self.wake()

    def wake(self) -> None:
        """Let those who wait look whether they are stopped."""
        with self._changes:
            self._changes.notify_all()

    async def wait(self, seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        seconds = max(0.0, min(seconds, threading.TIMEOUT_MAX))
        with self._changes:
            self._changes.wait_for(lambda: self._is_open or is_stopped(), seconds)
        return self._is_open


class ThreadCall(Call):
    """A call that another thread can stop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = threading.Lock()
        self._is_stopped = False
        self._wake: Optional[Callable[[], None]] = None

    def begin(self, wake: Optional[Callable[[], None]]) -> None:
        """Note how to wake the thread from what it begins now."""
        with self._guard:
            self._wake = wake
            if self._is_stopped:
                raise Cancelled("cancel() was called")

    def stop(self) -> None:
        with self._guard:
            self._is_stopped = True
            if self._wake is not None:
                self._wake()

    async def wait(self, gate: Gate, seconds: float) -> bool:
        self.begin(gate.wake)
        opened = await gate.wait(seconds, lambda: self._is_stopped)
        self.begin(None)
        return opened


class Link:
    """A connection for one command at a time."""

    def __init__(self, raw: Any, address: Any) -> None:
        self.raw = raw
        self.address = address
        self._busy = threading.Lock()
        # True if a reply is missing, which a later command would take for its own.
        self._is_spent = False

    def is_usable(self) -> bool:
        """Return False if the server closed the connection."""
        try:
            return not self.raw.can_read(0)
        except Exception:
            return False

    async def exchange(
        self, commands: Sequence[Words], until: float, call: ThreadCall
    ) -> List[Any]:
        if not self._busy.acquire(
            timeout=max(0.0, min(until - time.monotonic(), threading.TIMEOUT_MAX))
        ):
            raise NoAnswer
        try:
            if self._is_spent:
                raise exceptions.ConnectionError("a command before got no reply")
            call.begin(self._interrupt)
            self._is_spent = True
            self.raw.send_packed_command(self.raw.pack_commands(commands))
            replies = self._receive_all(len(commands), until)
            self._is_spent = False
            call.begin(None)
            return replies
        except exceptions.ConnectionError:
            # If the call was stopped, that is the reason.
            call.begin(None)
            raise
        finally:
            self._busy.release()

    def _receive_all(self, count: int, until: float) -> List[Any]:
        replies: List[Any] = []
        while len(replies) < count:
            reply = self._receive(until)
            replies.append(reply)
            if isinstance(reply, exceptions.BusyLoadingError):
                # redis-py has closed the connection, so no other reply comes.
                replies += [reply] * (count - len(replies))
        return replies

    def _receive(self, until: float) -> Any:
        while not self.raw.can_read(max(0.0, min(until - time.monotonic(), 60.0))):
            if time.monotonic() >= until:
                raise NoAnswer
        try:
            return self.raw.read_response(disable_decoding=True)
        except (exceptions.ResponseError, exceptions.BusyLoadingError) as error:
            return error

    def _interrupt(self) -> None:
        with suppress(OSError, TypeError):
            # Not the method of the socket itself, because TLS would say goodbye to the server.
            socket.socket.shutdown(self.raw._sock, socket.SHUT_RDWR)

    def leave(self, commands: Sequence[Words]) -> None:
        """Write commands behind what is unanswered, and close."""
        with suppress(Exception):
            if commands and self.raw._sock:
                self.raw.send_packed_command(self.raw.pack_commands(commands))
        self.close()

    def close(self) -> None:
        with suppress(Exception):
            self.raw.disconnect()


class ThreadKeeper(Keeper):
    """A thread that looks after the grants, and starts work in other threads."""

    def __init__(self) -> None:
        super().__init__()
        # SimpleQueue, because a finalizer may put work into it at any moment.
        self._work: "queue.SimpleQueue[Optional[Callable[[], Any]]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def start(self, work: Optional[Callable[[], Any]] = None) -> None:
        self._work.put(work)
        # A thread that couldn't be started is tried again.
        if self._thread is None or not self._thread.is_alive():
            self._thread = thread = threading.Thread(
                target=self._run, name="redislock", daemon=True
            )
            thread.start()

    wake = start

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            with suppress(queue.Empty):
                work = self._work.get(timeout=max(0.0, min(self.look() - time.monotonic(), 10.0)))
                if work is not None:
                    self._start_work(work)
                continue
            if not self.held:
                self._thread = None
                if not self._work.empty() or self.held:
                    self.start()

    def _start_work(self, work: Callable[[], Any]) -> None:
        try:
            in_thread(work)
        except RuntimeError:
            # No more threads. This thread must go on to look after the grants.
            LOG.exception("a lock that was collected ends with its lease")


class Threads:
    # A thread may wait in a blocking command.
    blocks = True
    gate = Gate
    guard = threading.Lock
    call = ThreadCall

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked process, which has no thread and no connection of the old one."""
        self.keeper = ThreadKeeper()
        self._idle: Dict[Any, List[Link]] = {}

    def me(self) -> Any:
        return threading.current_thread()

    # The owner of a reentrant lock.
    owner = me

    def has_ended(self, owner: threading.Thread) -> bool:
        return not owner.is_alive()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work in the background. Raise RuntimeError if no thread can be started."""
        try:
            in_thread(run, work)
        except BaseException:
            work.close()
            raise

    def start_from_finalizer(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.keeper.start(lambda: run(make()))

    def tell(self, on_lost: Callable[[Any], Any], lock: Any) -> None:
        try:
            in_thread(on_lost, lock)
        except RuntimeError:
            # No more threads, but the program must hear of the loss.
            tell(on_lost, lock)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def done(self, result: T) -> T:
        """Return the result of a call of redis-py. In redis.asyncio it is awaited."""
        return result

    async def abandon(self, raw: Any) -> None:
        raw.disconnect()

    async def learn_nodes(self, cluster: Any) -> None:
        if not cluster.get_nodes():
            cluster.nodes_manager.initialize()

    def pool(self, cluster: Any, node: Any) -> Any:
        return cluster.get_redis_connection(node).connection_pool

    def socket_timeout(self, seconds: float) -> float:
        return seconds

    # --- connections ------------------------------------------------------------------------------

    async def take(
        self, servers: Any, key: Any, elsewhere: Any, call: ThreadCall, until: float, kind: str
    ) -> Link:
        """Return the call's connection, an idle one, or a new one."""
        if call.kept.link is None or elsewhere is not None:
            call.part(self)
            idle = self._idle.get(servers.find(key, elsewhere), [])
            while idle and not call.unanswered and call.kept.link is None:
                link = idle.pop()
                if link.is_usable():
                    call.kept.link = link
                else:
                    link.close()
            if call.kept.link is None:
                opened = await self._open(servers.open(key, elsewhere), call, until)
                if call.kept.link is None:
                    call.kept.link = opened
                else:
                    # Another call of the same session was faster.
                    self._put(opened)
        return call.kept.link  # type: ignore[no-any-return]

    async def _open(
        self, opening: Coroutine[Any, Any, Any], call: ThreadCall, until: float
    ) -> Link:
        """Connect in another thread, because DNS and others know no time limit."""
        gate, guard = Gate(), threading.Lock()
        results: List[Any] = []

        def work() -> None:
            try:
                result: Any = Link(*run(opening))
            except BaseException as error:
                result = error
            with guard:
                results.append(result)
                is_late = len(results) > 1
            gate.open()
            if is_late and isinstance(result, Link):
                self._put(result)

        in_thread(work)
        try:
            await call.wait(gate, until - time.monotonic())
        except BaseException:
            with guard:
                results.append(None)
            if isinstance(results[0], Link):
                self._put(results[0])
            raise
        with guard:
            results.append(NoAnswer())
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]  # type: ignore[no-any-return]

    def put_back(self, call: Call) -> None:
        """Keep the call's connection for later calls."""
        link, call.kept.link = call.kept.link, None
        if link is not None:
            self._put(link)

    def _put(self, link: Link) -> None:
        idle = self._idle.setdefault(link.address, [])
        if len(idle) < IDLE_CONNECTIONS:
            idle.append(link)
        else:
            link.close()

    def drop(self, address: Any) -> None:
        for link in self._idle.pop(address, []):
            link.close()

    async def close(self) -> None:
        for address in list(self._idle):
            self.drop(address)
