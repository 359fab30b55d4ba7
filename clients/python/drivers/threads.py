"""The driver of the conformance suite for threads: see docs/internals/clients.md."""

import json
import math
import os
import queue
import sys
import threading

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster

import redislock


class Driver:
    def __init__(self):
        self.output = threading.Lock()
        self.locks = {}
        self.orders = {}
        self.waits = {}

    def say(self, **content):
        with self.output:
            sys.stdout.write(json.dumps(content) + "\n")
            sys.stdout.flush()

    def run(self):
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] in ("connect", "lock"):
                self.obey(order, getattr(self, order["do"]))
            elif order["do"] == "cancel":
                threading.Thread(target=self.obey, args=(order, self.cancel), daemon=True).start()
            else:
                if order["do"] == "acquire":
                    self.waits[order["id"]] = order["lock"]
                self.orders[order["lock"]].put(order)

    def obey(self, order, act):
        try:
            self.say(id=order["id"], **act(order))
        except redislock.NotAcquired as error:
            self.say(id=order["id"], error="not_acquired", text=str(error))
        except redislock.LockLost as error:
            self.say(id=order["id"], error="lost", text=str(error))
        except redislock.Cancelled as error:
            self.say(id=order["id"], error="cancelled", text=str(error))
        except redislock.Deadlock as error:
            self.say(id=order["id"], error="deadlock", text=str(error))
        except Exception as error:
            self.say(id=order["id"], error="other", text=repr(error))

    def connect(self, order):
        servers = [server.rsplit(":", 1) for server in order["servers"]]
        if order["cluster"]:
            nodes = [ClusterNode(host, int(port)) for host, port in servers]
            client = RedisCluster(startup_nodes=nodes)
        else:
            (host, port), *_ = servers
            client = Redis(host=host, port=int(port))
        self.made = redislock.Locks(client)
        return {"ok": True}

    def lock(self, order):
        name = order["lock"]
        lock = self.made.lock(
            order["keys"],
            lease=order["lease_ms"] / 1000,
            token=order["token"],
            shared=order["shared"],
            limit=order["limit"],
            permits=order["permits"],
            session=order["session"],
            keep=order["keep_ms"] / 1000,
            renew=order["renew"],
            on_lost=lambda _: self.say(event="lost", lock=name),
        )
        self.locks[name] = lock
        self.orders[name] = queue.Queue()
        # One thread for each lock, because a lock belongs to the thread that acquired it.
        threading.Thread(target=self.serve, args=(name,), daemon=True).start()
        return {"ok": True, "token": lock.token}

    def serve(self, name):
        while True:
            order = self.orders[name].get()
            self.obey(order, getattr(self, order["do"]))

    def acquire(self, order):
        lock, wait_ms = self.locks[order["lock"]], order["wait_ms"]
        if wait_ms == 0:
            fence = lock.acquire(blocking=False)
        else:
            fence = lock.acquire(timeout=-1 if wait_ms is None else wait_ms / 1000)
        return {"ok": False} if fence is None else {"ok": True, "fence": fence}

    def cancel(self, order):
        self.locks[self.waits[order["of"]]].cancel()
        return {"ok": True}

    def release(self, order):
        return {"ok": self.locks[order["lock"]].release()}

    def extend(self, order):
        return {"ok": self.locks[order["lock"]].extend(order["lease_ms"] / 1000)}

    def left(self, order):
        return {"ok": True, "ms": math.ceil(self.locks[order["lock"]].left() * 1000)}

    def state(self, order):
        lock = self.locks[order["lock"]]
        return {"ok": True, "lost": lock.lost, "fence": lock.fence, "token": lock.token}


Driver().run()
# Held locks stay held, because nothing is cleaned up.
os._exit(0)
