"""Libraries that call redis-py's ``client.lock``, changed like docs/migrate/python-libraries.md says."""

import importlib
import re
import sys
import threading
import types
from pathlib import Path

import django.conf
import pytest
from conftest import until
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


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class TestClient:
    def test_its_lock_is_the_drop_in(self, server):
        client = compat.Redis(port=server.port)
        assert type(client.lock("k")) is compat.Lock
        assert type(client.lock("k", 10, 0.1, lock_class=None)) is compat.Lock
        assert type(client.lock("k", lock_class=OldLock)) is OldLock
        lock = client.lock("k", 7, 0.5, False, 3)
        assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (7, 0.5, False, 3)

@pytest.fixture(scope="module")
def django_caches(shared_server):
    settings = run(block("django-redis", shared_server))["CACHES"]
    old = {**settings["default"], "OPTIONS": {}}
    django.conf.settings.configure(CACHES={**settings, "old": old})
    return caches


class TestDjangoRedis:
    KEY = ":1:orders:42"

    def test_it_waits_in_the_queue(self, server, django_caches):
        server.other_holds(self.KEY)
        got = []

        def work():
            with django_caches["default"].lock("orders:42", timeout=10, sleep=600):
                got.append(server.waiters(self.KEY))

        thread = in_thread(work)
        server.until_waiting(self.KEY)
        server.other_releases(self.KEY)
        thread.join(20)
        assert got == [0]
        assert server.is_free(self.KEY)

    def test_its_arguments_count(self, server, django_caches):
        cache = django_caches["default"]
        server.other_holds(self.KEY)
        assert not cache.lock("orders:42", blocking_timeout=1).acquire()
        assert not cache.lock("orders:42").acquire(blocking=False)
        server.other_releases(self.KEY)
        lock = cache.lock("orders:42", timeout=100, version=2)
        assert lock.acquire()
        assert 50_000 < server.redis.execute_command("LOCK.CHECK", ":2:orders:42", lock.local.token) <= 100_000
        server.redis.delete(":2:orders:42")
        with pytest.raises(LockNotOwnedError):
            lock.release()

class TestRedbeat:
    KEY = "redbeat::lock"

    def scheduler(self, server, client=None):
        app = run(block("redbeat", server))["app"]
        app.redbeat_redis = client or app.redbeat_redis
        app.conf.redbeat_redis_options = {"nonsense": "that isn't used"}
        assert get_redis(app) is app.redbeat_redis
        scheduler = RedBeatScheduler(app, lock_timeout=100)
        acquire_distributed_beat_lock(sender=types.SimpleNamespace(scheduler=scheduler))
        assert isinstance(scheduler.lock, compat.Lock)
        return scheduler

    def lease_ms(self, server, scheduler):
        return server.redis.execute_command("LOCK.CHECK", self.KEY, scheduler.lock.local.token)

    def test_each_tick_sets_the_lease_anew(self, server):
        scheduler = self.scheduler(server)
        for _ in range(3):
            scheduler.tick()
            assert 50_000 < self.lease_ms(server, scheduler) <= 100_000
        scheduler.close()
        assert server.is_free(self.KEY)

class TestDogpile:
    KEY = "_lockuser:42"

    @pytest.fixture
    def region(self, server, tmp_path, monkeypatch):
        """Return a function that makes a region as another process has it."""
        (tmp_path / "shop_cache.py").write_text(block("dogpile.cache", server))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "shop_cache", raising=False)
        shown = importlib.import_module("shop_cache").region
        assert type(shown.backend.writer_client) is compat.Redis

        def new():
            arguments = {"distributed_lock": True, "thread_local_lock": False, "lock_sleep": 600}
            return make_region().configure("shop.redis", arguments={"port": server.port, **arguments})

        return new

    def test_a_value_is_made_once_and_waited_for_in_the_queue(self, server, region):
        may_end = threading.Event()
        made, got = [], []

        def make():
            made.append(1)
            may_end.wait(20)
            return "Anna"

        first = in_thread(lambda: got.append(region().get_or_create("user:42", make)))
        until("it is being made", lambda: made == [1])
        second = in_thread(lambda: got.append(region().get_or_create("user:42", make)))
        server.until_waiting(self.KEY)
        may_end.set()
        first.join(20)
        second.join(20)
        assert (made, got) == ([1], ["Anna", "Anna"])
        assert server.is_free(self.KEY)
