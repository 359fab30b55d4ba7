"""The orders of the conformance suite: see docs/internals/client-tests.md.

Each order is a coroutine. A task awaits it. A thread runs it to its end, because the calls of the
library block, and `done` returns their results.
"""

import json
import math
import random
import threading
import time

from redis import exceptions

import redislock

ERRORS = [
    (redislock.NotAcquired, "not_acquired"),
    (redislock.LockLost, "lost"),
    (redislock.Cancelled, "cancelled"),
    (redislock.Deadlock, "deadlock"),
    (redislock.ModuleMissing, "module_missing"),
    (redislock.NotReplicated, "not_replicated"),
    (redislock.Unavailable, "unavailable"),
    (redislock.NotHeld, "misuse"),
    ((exceptions.AuthenticationError, exceptions.NoPermissionError), "denied"),
    (exceptions.RedisError, "other"),
    ((ValueError, TypeError), "argument"),
]
FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
WORDS = ("shared", "limit", "permits", "session", "renew", "data", "replicas", "reentrant")
TIMES = ("lease", "keep", "wait", "margin", "max_hold", "at_least")

_output = threading.Lock()


def say(**content):
    with _output:
        print(json.dumps(content), flush=True)


class Boom(Exception):
    """The error of a guarded block."""


def described(error):
    """Return the reply for an error."""
    if isinstance(error, Boom):
        return {"error": "failed", "text": str(error)}
    name = next((name for kind, name in ERRORS if isinstance(error, kind)), "other")
    if name == "other" and str(error).startswith(("WRONGPASS", "NOAUTH", "NOPERM")):
        name = "denied"
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return {"error": name, "text": " <- ".join(texts)}


class Observer(redislock.Observer):
    def __init__(self, locks):
        self.locks = locks

    def name_of(self, lock):
        return next(name for name, it in self.locks.items() if it is lock)

    def waited(self, lock, seconds, outcome):
        say(event="waited", lock=self.name_of(lock), ms=round(seconds * 1000), outcome=outcome)

    def granted(self, grant):
        say(event="granted", lock=self.name_of(grant.lock))

    def unavailable(self, error):
        say(event="unavailable", text=str(error))


def seconds(ms):
    ms = FLOATS.get(ms, ms) if isinstance(ms, str) else ms
    return ms / 1000 if isinstance(ms, (int, float)) else ms


def options(order):
    """Return the options of a lock. What is absent or null has its default."""
    chosen = {name: order.get(name) for name in WORDS}
    chosen.update((name, seconds(order.get(f"{name}_ms"))) for name in TIMES)
    return {name: value for name, value in chosen.items() if value is not None}


class Orders:
    """The orders, each a coroutine that returns the reply. Subclasses are for threads and tasks."""

    # The classes of redis-py: Redis, Sentinel, RedisCluster and ClusterNode.
    classes = ()
    Locks = None

    def __init__(self):
        self.locks = {}
        # The latest grant of each lock.
        self.grants = {}

    async def obey(self, order, **more):
        try:
            reply = await getattr(self, order["do"])(order, **more)
        except Exception as error:
            reply = described(error)
        say(id=order["id"], **reply)

    def made(self, order):
        """Make redis-py's client, and the factory of locks."""
        Redis, Sentinel, RedisCluster, ClusterNode = self.classes
        places = [it.rsplit(":", 1) for it in order["servers"]]
        servers = [(host, int(port)) for host, port in places]
        user = {name: order[name] for name in ("username", "password") if order.get(name)}
        if order["cluster"]:
            self.client = RedisCluster(startup_nodes=[ClusterNode(*it) for it in servers], **user)
        elif order.get("sentinel"):
            self.client = Sentinel(servers).master_for(order["sentinel"], **user)
        else:
            host, port = servers[0]
            self.client = Redis(host=host, port=port, **user)
        timeout = order.get("command_timeout_ms")
        settings = {} if timeout is None else {"command_timeout": seconds(timeout)}
        self.factory = self.Locks(self.client, observer=Observer(self.locks), **settings)
        return {"ok": True}

    async def lock(self, order):
        name = order["lock"]
        self.locks[name] = self.factory.lock(
            order["keys"], on_lost=lambda _: say(event="lost", lock=name), **options(order)
        )
        return {"ok": True}

    async def _acquired(self, order, **more):
        if order.get("wait_ms") is not None:
            more["timeout"] = seconds(order["wait_ms"])
        return await self.done(self.locks[order["lock"]].acquire(**more))

    async def acquire(self, order, **more):
        grant = await self._acquired(order, **more)
        if grant is None:
            return {"ok": False}
        self.grants[order["lock"]] = grant
        return {"ok": True, "fence": grant.fence, "token": grant.token}

    async def _entered(self, order):
        """Return a guarded block."""
        if order["wait_ms"] is None:
            return self.guarded(self.locks[order["lock"]])
        grant = await self._acquired(order)
        if grant is None:
            raise redislock.NotAcquired("not in time")
        return self.guarded(grant)

    async def block(self, order):
        async with await self._entered(order) as grant:
            self.grants[order["lock"]] = grant
            say(event="in", lock=order["lock"])
            await self.sleep(order["work_ms"] / 1000)
            if order["fail"] is not None:
                raise Boom(order["fail"])
        return {"ok": True, "fence": grant.fence}

    async def write(self, order):
        """Write the fence to a list until the loss of the lock ends the block."""
        async with await self._entered(order) as grant:
            while self.goes_on_after_a_loss or not grant.lost:
                await self.done(self.client.rpush(order["list"], grant.fence))
                await self.sleep(0.002)
        return {"ok": True}

    async def storm(self, order):
        lock, until = self.locks[order["lock"]], time.monotonic() + order["seconds"]
        releases = []

        async def acquires():
            while time.monotonic() < until:
                wait = random.random() * order["most_wait_ms"] / 1000
                try:
                    grant = await self.done(lock.acquire(wait))
                except redislock.Unavailable:
                    grant = None
                if grant is not None:
                    await self.sleep(0.001)
                    began = time.monotonic()
                    await self.done(grant.release())
                    releases.append(time.monotonic() - began)

        await self.all([acquires() for _ in range(order["tasks"])])
        p99 = (sorted(releases) or [0.0])[int(len(releases) * 0.99)]
        return {
            "ok": True,
            "grants": len(releases),
            "release_p99_ms": round(p99 * 1000, 1),
        }

    def held(self, order):
        if order["lock"] not in self.grants:
            raise redislock.NotHeld("never acquired")
        return self.grants[order["lock"]]

    async def release(self, order):
        return {"ok": await self.done(self.held(order).release())}

    async def release_all(self, order):
        return {"ok": True, "count": await self.done(self.factory.release_all())}

    async def extend(self, order):
        return {"ok": await self.done(self.held(order).extend(seconds(order["lease_ms"])))}

    async def left(self, order):
        grant = self.grants.get(order["lock"])
        return {"ok": True, "ms": 0 if grant is None else math.ceil(grant.left() * 1000)}

    async def owned(self, order):
        grant = self.grants.get(order["lock"])
        return {"ok": grant is not None and await self.done(grant.owned())}

    async def state(self, order):
        grant = self.grants.get(order["lock"])
        if grant is None:
            return {"ok": True, "lost": False, "fence": None, "token": None}
        return {"ok": True, "lost": grant.lost, "fence": grant.fence, "token": grant.token}

    async def texts(self, order):
        lock = self.locks[order["lock"]]
        things = lock, self.factory, lock._options, self.grants.get(order["lock"])
        forms = [form(it) for it in things for form in (repr, str, "{}".format)]
        return {"ok": True, "text": " ".join(forms)}
