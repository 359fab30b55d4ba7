"""The parts that both drivers share: see docs/internals/client-tests.md."""

import json
import random
import sys
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

_output = threading.Lock()


def say(**content):
    with _output:
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()


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


def addresses(order):
    return [(host, int(port)) for host, port in (it.rsplit(":", 1) for it in order["servers"])]


def credentials(order):
    return {name: order[name] for name in ("username", "password") if order.get(name) is not None}


def client(order, classes):
    """Return redis-py's client. The classes are Redis, Sentinel, RedisCluster and ClusterNode."""
    Redis, Sentinel, RedisCluster, ClusterNode = classes
    servers = addresses(order)
    if order["cluster"]:
        nodes = [ClusterNode(host, port) for host, port in servers]
        return RedisCluster(startup_nodes=nodes, **credentials(order))
    if order.get("sentinel"):
        return Sentinel(servers).master_for(order["sentinel"], **credentials(order))
    host, port = servers[0]
    return Redis(host=host, port=port, **credentials(order))


def settings(order):
    timeout = order.get("command_timeout_ms")
    return {} if timeout is None else {"command_timeout": seconds(timeout)}


def seconds(ms):
    ms = FLOATS.get(ms, ms) if isinstance(ms, str) else ms
    return ms / 1000 if isinstance(ms, (int, float)) else ms


def options(order):
    """Return the options of a lock. What is absent or null has its default."""
    chosen = {
        name: order[name]
        for name in (
            "shared",
            "limit",
            "permits",
            "session",
            "renew",
            "data",
            "replicas",
        )
        if order.get(name) is not None
    }
    for name in ("lease", "keep", "wait", "margin", "max_hold", "at_least"):
        if order.get(f"{name}_ms") is not None:
            chosen[name] = seconds(order[f"{name}_ms"])
    return chosen


def limit(order):
    """Return the keyword arguments of acquire()."""
    if order["wait_ms"] is None:
        return {}
    return {"timeout": seconds(order["wait_ms"])}


def texts(*things):
    return {
        "ok": True,
        "text": " ".join(form(it) for it in things for form in (repr, str, "{}".format)),
    }


def acquired(grant):
    """Return the reply to an acquire."""
    if grant is None:
        return {"ok": False}
    return {"ok": True, "fence": grant.fence, "token": grant.token}


def state(grant):
    """Return the state of the latest grant."""
    if grant is None:
        return {"ok": True, "lost": False, "fence": None, "token": None}
    return {"ok": True, "lost": grant.lost, "fence": grant.fence, "token": grant.token}


class Storm:
    """The tasks of one process that acquire a lock with short limits, again and again."""

    def __init__(self, order):
        self.until = time.monotonic() + order["seconds"]
        self.most_wait = order["most_wait_ms"] / 1000
        self.grants = 0
        self.releases = []
        self.most_late = 0.0

    def goes_on(self):
        return time.monotonic() < self.until

    def wait(self):
        return random.random() * self.most_wait

    def ended(self, limit, began):
        self.most_late = max(self.most_late, time.monotonic() - began - limit)

    def released(self, began):
        self.grants += 1
        self.releases.append(time.monotonic() - began)

    def reply(self):
        releases = sorted(self.releases) or [0.0]
        p99 = releases[int(len(releases) * 0.99)]
        return {
            "ok": True,
            "grants": self.grants,
            "release_p99_ms": round(p99 * 1000, 1),
            "most_late_ms": round(self.most_late * 1000, 1),
        }
