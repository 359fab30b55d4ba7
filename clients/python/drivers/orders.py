"""The parts that both drivers share: see docs/internals/clients.md."""

import json
import sys
import threading

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
    ((redislock.NotHeld, redislock.AlreadyHeld), "misuse"),
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

    def granted(self, lock):
        say(event="granted", lock=self.name_of(lock))

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
            "token",
            "shared",
            "limit",
            "permits",
            "session",
            "renew",
            "reentrant",
            "data",
            "replicas",
        )
        if order.get(name) is not None
    }
    for name in ("lease", "keep", "wait", "max_hold", "at_least"):
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


def state(lock):
    return {"ok": True, "lost": lock.lost, "fence": lock.fence, "token": lock.token}
