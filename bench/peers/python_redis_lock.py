"""python-redis-lock with its defaults: waits with BLPOP for a signal, releases with a script."""

import redis_lock

from contenders import KEY, LEASE_SECONDS, run


def prepare(client):
    def acquire():
        lock = redis_lock.Lock(client, KEY, expire=LEASE_SECONDS)
        if not lock.acquire():
            raise RuntimeError("not granted")
        return lock.release

    return acquire


run(prepare)
