"""Behaviours that are specific to threads and to the settings of redis-py's clients."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import redis
from conftest import Server, until
from redis import Redis
from redis.sentinel import Sentinel

from redislock import AlreadyHeld, Cancelled, LockLost, Locks, NotAcquired, NotHeld, Unavailable

KEY = "k"


def in_thread(act, *args, **options):
    """Start a call in another thread. Return a function that gives its result or its error."""
    result = []

    def run():
        try:
            result.append((act(*args, **options), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def outcome():
        thread.join(20)
        assert result, "it goes on and on"
        value, error = result[0]
        if error is not None:
            raise error
        return value

    outcome.thread = thread
    return outcome


def acquired_and_released(lock):
    fence = lock.acquire()
    assert lock.release()
    return fence


SETTINGS = {
    "defaults": {},
    "a pool of one connection": {"max_connections": 1},
    "decoded answers": {"decode_responses": True},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "a short time limit": {"socket_timeout": 1},
    "no time limit": {"socket_timeout": None},
    "health checks": {"health_check_interval": 1},
    "retries": {"retry_on_error": [redis.ConnectionError]},
    "another database": {"db": 3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_wait_is_longer_than_every_limit_of_the_client(server, settings):
    client = Redis(port=server.port, **settings)
    locks = Locks(client)
    holder, waiter = locks.lock(KEY), locks.lock(KEY)
    with holder:
        assert holder.locked()
        assert 25 < holder.left() <= 30
        assert locks.lock(KEY).acquire(timeout=1) is None
        outcome = in_thread(acquired_and_released, waiter)
        began = time.monotonic()
        until("it waits", lambda: server.redis.info("lock")["lock_waiters"] == 1)
        connected = server.redis.info("stats")["total_connections_received"]
        long = 1.3 if {"socket_timeout", "health_check_interval"} & {*settings} else 0.2
        until("it has waited long", lambda: time.monotonic() > began + long)
        # The same wait continues, without a new connection.
        assert server.redis.info("stats")["total_connections_received"] == connected
        first = holder.fence
    assert outcome() > first
    assert not waiter.locked()
    assert client.ping()


def test_waiters_take_no_connection_of_the_pool(server):
    client = Redis(port=server.port, max_connections=1)
    locks = Locks(client)
    server.other_holds(KEY)
    outcomes = [in_thread(acquired_and_released, locks.lock(KEY)) for _ in range(5)]
    server.until_waiting(KEY, 5)
    with client.pipeline() as pipe:
        # The one connection of the pool is taken.
        pipe.watch("x")
        with locks.lock("another"):
            server.other_releases(KEY)
            assert len({outcome() for outcome in outcomes}) == 5


def test_a_client_of_sentinel_leaves_the_old_primary(server, sentinel):
    """Fail over while the old primary lives, and Sentinel can't reach it."""
    sentinel_of_old = Redis(port=sentinel, decode_responses=True)
    newer = Server()
    try:
        client = Sentinel([("127.0.0.1", sentinel)]).master_for("mymaster")
        locks = Locks(client)
        outcomes = [
            in_thread(acquired_and_released, locks.lock(f"k{number}")) for number in range(4)
        ]
        assert all(outcome() for outcome in outcomes)
        assert locks._io._idle
        sentinel_of_old.execute_command("SENTINEL", "REMOVE", "mymaster")
        sentinel_of_old.execute_command(
            "SENTINEL", "MONITOR", "mymaster", "127.0.0.1", newer.port, 1
        )
        # The program itself learns of the newer primary.
        client.connection_pool.disconnect()
        client.ping()
        for number in range(4):
            with locks.lock(f"k{number}"):
                assert not newer.is_free(f"k{number}")
                assert server.is_free(f"k{number}")
    finally:
        newer.stop()


def test_a_client_of_a_unix_socket():
    path = f"/tmp/redislock-{os.getpid()}.sock"
    server = Server("start", "--unixsocket", path)
    try:
        with Locks(Redis(unix_socket_path=path)).lock(KEY) as lock:
            assert not server.is_free(KEY)
            assert lock.fence
        assert server.is_free(KEY)
    finally:
        server.stop()


def test_threads_that_share_a_lock_exclude_each_other(server):
    lock = Locks(Redis(port=server.port)).lock(KEY, reentrant=True)
    inside, most, count = 0, 0, 0

    def work():
        nonlocal inside, most, count
        for _ in range(25):
            with lock, lock:
                inside += 1
                most = max(most, inside)
                count += 1
                time.sleep(0.0005)
                inside -= 1

    for outcome in [in_thread(work) for _ in range(8)]:
        outcome()
    assert (most, count) == (1, 200)
    assert server.is_free(KEY)


def test_a_release_that_outlasts_the_lease_spares_the_next_thread(own_server):
    lock = Locks(Redis(port=own_server.port), command_timeout=3).lock(KEY, lease=2, renew=False)
    lock.acquire()
    own_server.freeze()
    release = in_thread(lock.release)
    next_one = in_thread(acquired_and_released, lock)
    with pytest.raises(Unavailable):
        release()
    own_server.thaw()
    assert next_one()
    until("it is free", lambda: own_server.is_free(KEY))


def test_a_release_whose_answer_came_too_late_was_a_release(own_server):
    # The second attempt finds nothing to release, because the first one was executed.
    lock = Locks(Redis(port=own_server.port), command_timeout=5).lock(KEY)
    assert lock.acquire(timeout=20)
    lock._commands.command_timeout = 0.3
    own_server.freeze()
    lock._deadline = lambda: time.monotonic() + 20
    release, began = in_thread(lock.release), time.monotonic()
    until("it was sent twice", lambda: time.monotonic() > began + 1)
    own_server.thaw()
    assert release()
    assert not lock.lost
    assert own_server.is_free(KEY)


def test_another_thread_may_not_release_a_reentrant_one(server):
    lock = Locks(Redis(port=server.port)).lock(KEY, reentrant=True)
    with lock:
        with pytest.raises(NotHeld, match="reentrant"):
            in_thread(lock.release)()
        assert in_thread(lock.acquire, blocking=False)() is None
        assert in_thread(lock.acquire, timeout=0.05)() is None
        assert not server.is_free(KEY)
    assert server.is_free(KEY)


def test_who_holds_it_may_not_acquire_it_again(server):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    with lock:
        with pytest.raises(AlreadyHeld, match="reentrant=True"):
            lock.acquire()
        assert lock.owned()
    assert server.is_free(KEY)


def test_cancel_ends_the_waits_of_all_threads_of_a_lock(server):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    server.other_holds(KEY)
    outcomes = [in_thread(lock.acquire) for _ in range(3)]
    # The first thread waits at the server, the others wait for it here. Only a wait that has begun
    # can be cancelled.
    server.until_waiting(KEY)
    until("all wait", lambda: len(lock._calls) == 3 and len(lock._turn._gates) == 2)
    lock.cancel()
    for outcome in outcomes:
        with pytest.raises(Cancelled):
            outcome()
    assert server.waiters(KEY) == 0
    server.other_releases(KEY)
    with lock:
        pass


@pytest.fixture
def interrupts_are_raised():
    """Raise interrupts, even if a shell started the tests in the background and so ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_waiting_leaves_nothing(server, interrupts_are_raised):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    for _ in range(5):
        server.other_holds(KEY)
        interrupts = in_thread(
            lambda: (server.until_waiting(KEY), os.kill(os.getpid(), signal.SIGINT))
        )
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        interrupts()
        until("no place is left", lambda: server.waiters(KEY) == 0)
        server.other_releases(KEY)
        assert server.is_free(KEY)
    with lock:
        assert not lock.lost


def test_a_forked_process_holds_nothing_and_waits_as_another(server):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    fence = lock.acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            with pytest.raises(NotHeld):
                lock.release()
            held = lock.acquire(blocking=False)
            later = lock.acquire(timeout=20)
            os.write(writing, repr([held, later > fence, lock.release()]).encode())
        os._exit(0)
    try:
        server.until_waiting(KEY)
        assert not lock.lost
        assert lock.left() > 0
        assert lock.release()
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reading, 100) == b"[None, True, True]"
    finally:
        os.close(reading)
        os.close(writing)
    assert server.is_free(KEY)


def test_a_clock_that_is_set_changes_nothing(server, monkeypatch):
    lost = threading.Event()
    locks = Locks(Redis(port=server.port))
    holder = locks.lock(KEY, lease=3, on_lost=lambda _: lost.set())
    holder.acquire()
    now = time.time
    for jump in (86_400, -86_400):
        monkeypatch.setattr(time, "time", lambda jump=jump: now() + jump)
        began = time.monotonic()
        assert in_thread(locks.lock(KEY).acquire, timeout=2)() is None
        assert 2 <= time.monotonic() - began < 15
    assert not lost.is_set()
    assert holder.release()


def test_with_waits_as_long_as_it_is_told(server):
    lock = Locks(Redis(port=server.port)).lock(KEY, wait=1)
    server.other_holds(KEY)
    with pytest.raises(NotAcquired), lock:
        pass
    assert server.waiters(KEY) == 0


def test_a_loss_is_raised_at_the_end_unless_something_else_is(server):
    lock = Locks(Redis(port=server.port)).lock(KEY)
    assert lock.fence is None
    with pytest.raises(LockLost), lock:
        fence = lock.fence
        server.redis.delete(KEY)
    assert lock.lost and lock.fence == fence
    with pytest.raises(ZeroDivisionError), lock:
        server.redis.delete(KEY)
        1 / 0


def test_an_inner_acquire_of_what_was_lost_is_refused(server):
    lock = Locks(Redis(port=server.port)).lock(KEY, reentrant=True)
    with pytest.raises(LockLost):
        with lock:
            server.redis.delete(KEY)
            with lock:
                pytest.fail("acquired the lost lock again")
    until("it is free", lambda: server.is_free(KEY))
    with lock:
        assert not lock.lost


def test_a_lock_that_was_written_over_is_lost(server):
    told = threading.Event()
    lock = Locks(Redis(port=server.port)).lock(KEY, lease=0.6, on_lost=lambda _: told.set())
    lock.acquire()
    server.redis.set(KEY, "text")
    assert told.wait(5)
    assert lock.lost
    assert not lock.release()
    assert server.redis.get(KEY) == b"text"


def test_a_server_that_was_never_there_is_told_in_time(server):
    from conftest import free_port

    lock = Locks(Redis(port=free_port())).lock(KEY)
    for limit, least in ((0, 0.9), (1.5, 1.4)):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="connection refused"):
            lock.acquire(limit)
        assert least < time.monotonic() - began < limit + 4


def test_a_wrong_password_is_told_at_once(server):
    server.redis.config_set("requirepass", "secret")
    try:
        with pytest.raises(redis.AuthenticationError):
            Locks(Redis(port=server.port, password="wrong")).lock(KEY).acquire()
        with Locks(Redis(port=server.port, password="secret")).lock(KEY):
            pass
    finally:
        Redis(port=server.port, password="secret").config_set("requirepass", "")


def test_many_grants_leave_little_behind(server):
    locks = Locks(Redis(port=server.port))
    lock = locks.lock(KEY)
    connected = server.redis.info("stats")["total_connections_received"]
    for _ in range(1000):
        with lock:
            pass
    assert not locks._io.keeper.held
    assert server.redis.info("stats")["total_connections_received"] - connected < 10


def test_a_client_that_names_its_server_in_another_way_keeps_its_connections(server):
    for pool in (
        redis.ConnectionPool(port=server.port),
        redis.ConnectionPool(host="localhost", port=str(server.port)),
    ):
        locks = Locks(Redis(connection_pool=pool))
        connected = server.redis.info("stats")["total_connections_received"]
        for _ in range(20):
            with locks.lock(KEY):
                pass
        assert server.redis.info("stats")["total_connections_received"] - connected < 5
    for pool in (redis.ConnectionPool.from_url("redis://localhost/0"), redis.ConnectionPool()):
        locks = Locks(Redis(connection_pool=pool))
        assert locks._commands.servers.find(KEY) == ("localhost", 6379)


def test_a_short_lease_beside_a_long_one_is_told_lost_in_time(server):
    locks = Locks(Redis(port=server.port))
    with locks.lock("another"):
        until("the keeper sleeps", lambda: locks._io.keeper._looks_at < 1e12)
        lost = threading.Event()
        short = locks.lock(KEY, lease=0.3, renew=False, on_lost=lambda _: lost.set())
        short.acquire()
        assert lost.wait(5)
    assert not short.release()


def test_a_token_is_any_bytes(server):
    client = Redis(port=server.port, decode_responses=True)
    lock = Locks(client).lock(b"\xffkey", token=b"\xfe\xff")
    with lock:
        assert lock.token == b"\xfe\xff"
        assert lock.left() > 0
        assert lock.locked()


def test_a_process_ends_while_it_holds_a_lock(server):
    program = (
        "import redis, redislock, sys\n"
        "redislock.Locks(redis.Redis(port=int(sys.argv[1]))).lock('k').acquire()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(server.port)], timeout=20)
    assert ended.returncode == 0
    assert not server.is_free(KEY)
