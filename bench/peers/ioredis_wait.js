// LOCK.WAIT through ioredis, with a new token for each grant, like the libraries. A task that waits
// blocks its connection, so each has one of its own.
"use strict";

const { randomUUID } = require("crypto");
const { run, LEASE_MS } = require("./contenders.js");

run((shared) => {
  const client = shared.duplicate();
  return async () => {
    const token = randomUUID();
    const granted = await client.call("LOCK.WAIT", "lock", token, "PX", LEASE_MS);
    if (!Array.isArray(granted)) throw new Error("not granted");
    return async () => {
      const released = await client.call("LOCK.RELEASE", "lock", token);
      if (released !== 1) throw new Error("not released");
    };
  };
});
