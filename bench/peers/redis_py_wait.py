"""LOCK.WAIT through redis-py, with a new token for each grant, like the libraries."""

import uuid

from contenders import KEY, LEASE_SECONDS, run


def prepare(client):
    def acquire():
        token = uuid.uuid4().hex
        if not client.execute_command("LOCK.WAIT", KEY, token, "PX", LEASE_SECONDS * 1000):
            raise RuntimeError("not granted")

        def release():
            if client.execute_command("LOCK.RELEASE", KEY, token) != 1:
                raise RuntimeError("not released")

        return release

    return acquire


run(prepare)
