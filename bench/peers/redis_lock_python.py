"""This project's client with its defaults: waits in the server's queue, renews the lease."""

from redislock import Locks

from contenders import KEY, run

locks = None


def prepare(client):
    global locks
    locks = locks or Locks(client)
    lock = locks.lock(KEY)

    return lambda: lock.acquire().release


run(prepare)
