// redlock on one server: polls after 200 ms plus jitter, here until the lock is granted.
"use strict";

const Redlock = require("redlock");
const { run, LEASE_MS } = require("./contenders.js");

run((client) => {
  const redlock = new Redlock([client], { retryCount: -1 });
  return async () => {
    const lock = await redlock.lock("lock", LEASE_MS);
    await lock.unlock();
  };
});
