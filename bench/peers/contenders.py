"""Threads that contend for one lock, with the one client of their process.

Called as `driver.py PORT CONTENDERS WARM_SECONDS HELD_MS OTHER_MS`. Each contender has the lock for
HELD_MS, and does without it for OTHER_MS before it asks again. Prints `ready` WARM_SECONDS after the first
grant of this process. Counts from the line `begin` to the line `end` of its input, and then prints a line
of JSON: the grants of each contender, all waits in microseconds, the seconds, and the processor time
of this process in that time.
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


def microseconds(seconds):
    return int(seconds * 1e6)


def run(prepare):
    """Runs the contenders. `prepare(client)` returns a function for one contender that acquires the
    lock, and returns the function that releases it."""
    port, count, warm = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    held, other = (int(ms) / 1000 for ms in sys.argv[4:])
    grants, since, waits = [0] * count, [None] * count, []
    # Each thread may need a connection, and a pool has 100 by default.
    client = redis.Redis(port=port, max_connections=count + 10)

    def contend(index, acquire):
        try:
            while True:
                since[index] = time.monotonic()
                release = acquire()
                waits.append(microseconds(time.monotonic() - since[index]))
                since[index] = None
                grants[index] += 1
                if held:
                    time.sleep(held)
                release()
                if other:
                    time.sleep(other)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    for index in range(count):
        threading.Thread(target=contend, args=(index, prepare(client)), daemon=True).start()
    while not any(grants):
        time.sleep(0.01)
    time.sleep(warm)
    print("ready", flush=True)
    sys.stdin.readline()
    before, first, begin, cpu = list(grants), len(waits), time.monotonic(), cpu_seconds()
    sys.stdin.readline()
    end, cpu = time.monotonic(), cpu_seconds() - cpu
    counted = [now - then for now, then in zip(list(grants), before)]
    # A wait that isn't over counts with its age.
    open_waits = [microseconds(end - then) for then in list(since) if then is not None]
    told = {"grants": counted, "waits": waits[first:] + open_waits, "seconds": end - begin, "cpu": cpu}
    print(json.dumps(told), flush=True)
    # Exits without the contenders that are still blocked on the server.
    os._exit(0)
