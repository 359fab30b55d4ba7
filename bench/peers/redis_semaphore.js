// redis-semaphore's Mutex: polls every 10 ms, here for up to an hour.
"use strict";

const { Mutex } = require("redis-semaphore");
const { run, LEASE_MS } = require("./contenders.js");

run((client) => {
  const options = { lockTimeout: LEASE_MS, acquireTimeout: 3600000 };
  return async () => {
    const mutex = new Mutex(client, "lock", options);
    await mutex.acquire();
    return () => mutex.release();
  };
});
