"""Threads that contend for one lock, each with a connection of its own.

Called as `driver.py PORT CONTENDERS SECONDS`. Prints `ready`. SECONDS later, prints a line of JSON:
the grants of each contender, the seconds, and the processor time of this process in that time.
"""

import json
import os
import resource
import sys
import threading
import time
import traceback

import redis

KEY = "lock"
LEASE_SECONDS = 30


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(prepare):
    """Runs the contenders. `prepare(client)` returns a function for one acquire and release."""
    port, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    grants = [0] * count

    def contend(index, once):
        try:
            while True:
                once()
                grants[index] += 1
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    clients = [redis.Redis(port=port) for _ in range(count)]
    for client in clients:
        client.ping()
    for index, client in enumerate(clients):
        once = prepare(client)
        threading.Thread(target=contend, args=(index, once), daemon=True).start()
    # All contenders start meanwhile.
    time.sleep(0.2)
    print("ready", flush=True)
    before, begin, cpu = list(grants), time.monotonic(), cpu_seconds()
    time.sleep(seconds)
    took, cpu = time.monotonic() - begin, cpu_seconds() - cpu
    counted = [now - then for now, then in zip(list(grants), before)]
    print(json.dumps({"grants": counted, "seconds": took, "cpu": cpu}), flush=True)
    # Exits without the contenders that are still blocked on the server.
    os._exit(0)
