"""redis-py's Lock with its defaults: polls every 100 ms, releases with a script."""

from contenders import KEY, LEASE_SECONDS, run


def prepare(client):
    def acquire():
        lock = client.lock(KEY, timeout=LEASE_SECONDS)
        if not lock.acquire():
            raise RuntimeError("not granted")
        return lock.release

    return acquire


run(prepare)
