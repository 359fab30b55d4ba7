"""Libraries that call redis-py's ``client.lock``, changed like docs/migrate/python-libraries.md says."""

import importlib
import re
import sys
import threading
import types
from pathlib import Path

import django.conf
import pytest
from conftest import in_thread, until
from django.core.cache import caches
from dogpile.cache import make_region
from redbeat.schedulers import RedBeatScheduler, acquire_distributed_beat_lock, get_redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock as OldLock

from redislock import compat

PAGE = Path(__file__).parents[3] / "docs/migrate/python-libraries.md"


def block(heading, server):
    """Return the code below a heading of the page, for this server."""
    text = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert "localhost:6379" in code
    return code.replace("6379", str(server.port))


def run(code):
    names = {}
    exec(code, names)
    return names


def test_the_clients_lock_is_the_drop_in(server):
    client = compat.Redis(port=server.port)
    assert type(client.lock("k")) is compat.Lock
    assert type(client.lock("k", 10, 0.1, lock_class=None)) is compat.Lock
    assert type(client.lock("k", lock_class=OldLock)) is OldLock
    lock = client.lock("k", 7, 0.5, False, 3)
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (7, 0.5, False, 3)


@pytest.fixture(scope="module")
def django_cache(shared_server):
    settings = run(block("django-redis", shared_server))["CACHES"]
    django.conf.settings.configure(CACHES=settings)
    return caches["default"]


def test_django_redis_waits_in_the_queue(server, django_cache):
    key = ":1:orders:42"

    def work():
        with django_cache.lock("orders:42", timeout=10, sleep=600):
            return server.waiters(key)

    server.other_holds(key)
    got = in_thread(work)
    server.until_waiting(key)
    server.other_releases(key)
    assert got() == 0
    assert server.is_free(key)


def test_the_arguments_of_django_redis_count(server, django_cache):
    server.other_holds(":1:orders:42")
    assert not django_cache.lock("orders:42", blocking_timeout=1).acquire()
    assert not django_cache.lock("orders:42").acquire(blocking=False)
    lock = django_cache.lock("orders:42", timeout=100, version=2)
    assert lock.acquire()
    assert 50 < server.left(":2:orders:42", lock.local.token) <= 100
    server.redis.delete(":2:orders:42")
    with pytest.raises(LockNotOwnedError):
        lock.release()


def test_each_tick_of_redbeat_sets_the_lease_anew(server):
    app = run(block("redbeat", server))["app"]
    app.conf.redbeat_redis_options = {"nonsense": "that isn't used"}
    assert get_redis(app) is app.redbeat_redis
    scheduler = RedBeatScheduler(app, lock_timeout=100)
    acquire_distributed_beat_lock(sender=types.SimpleNamespace(scheduler=scheduler))
    assert isinstance(scheduler.lock, compat.Lock)
    for _ in range(3):
        scheduler.tick()
        assert 50 < server.left("redbeat::lock", scheduler.lock.local.token) <= 100
    scheduler.close()
    assert server.is_free("redbeat::lock")


def test_dogpile_makes_a_value_once_and_others_wait_in_the_queue(server, tmp_path, monkeypatch):
    (tmp_path / "shop_cache.py").write_text(block("dogpile.cache", server))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_cache", raising=False)
    shown = importlib.import_module("shop_cache").region
    assert type(shown.backend.writer_client) is compat.Redis
    options = {"distributed_lock": True, "thread_local_lock": False, "lock_sleep": 600}
    may_end, made = threading.Event(), []

    def make():
        made.append(1)
        may_end.wait(20)
        return "Anna"

    def get():
        """Get the value like another process, by a region of its own."""
        region = make_region().configure("shop.redis", arguments={"port": server.port, **options})
        return region.get_or_create("user:42", make)

    first = in_thread(get)
    until("it is being made", lambda: made == [1])
    second = in_thread(get)
    server.until_waiting("_lockuser:42")
    may_end.set()
    assert (first(), second(), made) == ("Anna", "Anna", [1])
    assert server.is_free("_lockuser:42")
