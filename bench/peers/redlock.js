// redlock on one server: polls after 200 ms plus jitter, here until the lock is granted.
"use strict";

const Redlock = require("redlock").default;
const { run, LEASE_MS } = require("./contenders.js");

let redlock;

run((client) => {
  redlock = redlock || new Redlock([client], { retryCount: -1 });
  return async () => {
    const lock = await redlock.acquire(["lock"], LEASE_MS);
    return () => lock.release();
  };
});
