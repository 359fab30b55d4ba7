// This project's client with its defaults: waits in the server's queue, renews the lease.
"use strict";

const { Locks } = require("@redis-lock/client/ioredis");
const { run } = require("./contenders.js");

let locks;

run((client) => {
  locks = locks || new Locks(client);
  const lock = locks.lock("lock");
  return async () => {
    const grant = await lock.acquire();
    return () => grant.release();
  };
});
