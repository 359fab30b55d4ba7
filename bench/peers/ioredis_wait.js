// LOCK.WAIT through ioredis, with a new token for each grant, like the libraries.
"use strict";

const { randomUUID } = require("crypto");
const { run, LEASE_MS } = require("./contenders.js");

run((client) => async () => {
  const token = randomUUID();
  const granted = await client.call("LOCK.WAIT", "lock", token, "PX", LEASE_MS);
  if (!Array.isArray(granted)) throw new Error("not granted");
  const released = await client.call("LOCK.RELEASE", "lock", token);
  if (released !== 1) throw new Error("not released");
});
