"""Behaviours that are specific to threads and processes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import KEY, in_thread, until

from redislock import LockLost, Locks, NotHeld, Unavailable, _threads


@pytest.fixture
def kind_name():
    return "threads"


def elapse(seconds):
    end = time.monotonic() + seconds
    until("the time has passed", lambda: time.monotonic() > end)


# --- waits ----------------------------------------------------------------------------------------


@pytest.fixture
def interrupts_are_raised():
    """Raise interrupts, even if a shell started the tests in the background and so ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_of_a_wait_leaves_nothing(server, locks, interrupts_are_raised):
    def interrupt():
        server.until_waiting(KEY)
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(5):
        server.other_holds(KEY)
        interrupts = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            locks.lock(KEY).acquire()
        interrupts()
        server.until_waiting(KEY, 0)
        server.other_releases(KEY)
        assert server.is_free(KEY)
    with locks.lock(KEY) as grant:
        assert grant.owned()


def test_a_clock_that_is_set_changes_nothing(locks, monkeypatch):
    grant = locks.lock(KEY, lease=2).acquire()
    now = time.time
    for jump in (86_400, -86_400):
        monkeypatch.setattr(time, "time", lambda jump=jump: now() + jump)
        began = time.monotonic()
        assert locks.lock(KEY).acquire(timeout=1.2) is None
        assert 1.2 <= time.monotonic() - began < 10
    assert grant.release() and not locks._observer.losses


def test_a_thread_that_finds_no_connection_is_in_time(start, kind, monkeypatch):
    def is_ready_slowly(pool):
        is_so = is_ready(pool)
        # The others look too.
        time.sleep(0.02)
        return is_so

    def seconds():
        began = time.monotonic()
        with pytest.raises(Unavailable):
            lock.acquire(0.2)
        return time.monotonic() - began

    server, is_ready = start(), _threads._is_ready
    # A new connection waits for the reply to its password.
    with server.allowing() as client:
        lock = Locks(client).lock(KEY)
        assert lock.acquire().release()
        monkeypatch.setattr(_threads, "_is_ready", is_ready_slowly)
        with server.standing_still():
            calls = [in_thread(seconds) for _ in range(3)]
            assert max(call() for call in calls) < 0.8


# --- reentrant locks ------------------------------------------------------------------------------


def test_reentrant_locks_on_the_same_keys_count_together(server, locks):
    one, two = (locks.lock(KEY, reentrant=True) for _ in range(2))
    with one as grant:
        assert two.acquire() is grant
        assert in_thread(two.try_acquire)() is None
        with two:
            pass
        assert grant.release()
        assert grant.owned()
    assert server.is_free(KEY)
    with pytest.raises(NotHeld):
        grant.release()
    # Readers and writers don't count together.
    with locks.lock(KEY, shared=True, reentrant=True):
        assert one.try_acquire() is None
    with one as later:
        assert later.fence > grant.fence


def test_a_lost_reentrant_lock_is_refused_until_it_is_released(server, locks):
    lock = locks.lock(KEY, lease=0.5, renew=False, reentrant=True)
    grant = lock.acquire()
    assert lock.acquire() is grant
    until("it is lost", lambda: grant.lost)
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.acquire()
        assert grant.release() is False
    with lock as later:
        assert later.owned()
    with pytest.raises(LockLost), lock, lock:
        server.redis.delete(KEY)
        assert lock.acquire().extend(1) is False


def test_each_thread_leaves_its_own_block(locks):
    lock, entered, may_leave = locks.lock(KEY, limit=2), threading.Event(), threading.Event()

    def enters_first_and_leaves_first():
        with lock:
            entered.set()
            assert may_leave.wait(20)

    has_left = in_thread(enters_first_and_leaves_first)
    assert entered.wait(20)
    with lock as grant:
        may_leave.set()
        has_left()
        assert grant.owned()


# --- threads that can't be started ----------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch):
    """Let no thread start in the block. It gives the refused calls."""

    @contextlib.contextmanager
    def refused():
        refusals = []

        def refuse(*words, **_):
            refusals.append(words)
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(_threads.threading, "Thread", refuse)
            yield refusals

    return refused


def test_renewals_go_on_after_no_thread_could_be_started(locks, no_threads):
    grants = [locks.lock(key, lease=3).acquire() for key in (KEY, "another")]
    with no_threads() as refusals:
        until("both renewals were refused", lambda: len(refusals) >= 2, 5)
    elapse(3.5)
    assert all(grant.release() for grant in grants)


def test_a_grant_that_no_thread_would_renew_is_released(server, locks, no_threads):
    lock = locks.lock(KEY, lease=1)
    # The connection is open, and the thread that renewed the grant has ended.
    assert lock.acquire().release()
    until("the thread has ended", lambda: not locks._io.keeper._thread)
    with no_threads(), pytest.raises(RuntimeError, match="can't start"):
        lock.acquire()
    assert server.is_free(KEY)
    # Another thread renews the next grant.
    grant = lock.acquire()
    elapse(1.5)
    assert not grant.lost
    assert grant.release()


# --- processes ------------------------------------------------------------------------------------


def forked(work):
    """Fork a process that returns the result of the work as its status."""
    child = os.fork()
    if child:
        return child
    status = 99
    with contextlib.suppress(BaseException):
        status = work()
    os._exit(status)


def test_a_forked_process_holds_nothing_and_waits_as_another(server, locks):
    lock = locks.lock(KEY, reentrant=True)
    grant = lock.acquire()

    def work():
        with pytest.raises(NotHeld):
            grant.release()
        assert lock.try_acquire() is None
        later = lock.acquire(timeout=20)
        return 7 if later.fence > grant.fence and later.release() else 1

    child = forked(work)
    server.until_waiting(KEY)
    assert grant.left() > 0
    assert grant.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_grant_that_a_forked_process_drops_stays(locks):
    grants = [locks.lock(KEY).acquire()]

    def work():
        del grants[0]
        # Nothing was given to the thread that releases.
        return 7 if locks._io.keeper._work.empty() and not locks._io.keeper._thread else 1

    child = forked(work)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert grants[0].release()


PROGRAM = """
import os, redis, redislock, sys, time
locks = redislock.Locks(redis.Redis(port=int(sys.argv[1])))
"""

CHILD_OUTLIVES_PARENT = """
grant = locks.lock("k", session=True).acquire()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


def test_a_forked_process_doesnt_keep_the_session_of_its_parent(server):
    words = [sys.executable, "-c", PROGRAM + CHILD_OUTLIVES_PARENT, str(server.port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        try:
            assert not server.is_free(KEY)
            parent.kill()
            until("the session has ended", lambda: server.is_free(KEY), 5)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_ends_while_it_holds_a_lock(server):
    words = [sys.executable, "-c", PROGRAM + "grant = locks.lock('k').acquire()", str(server.port)]
    ended = subprocess.run(words, timeout=20, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert not server.is_free(KEY)
