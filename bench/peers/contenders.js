// Asynchronous clients that contend for one lock, each with a connection of its own.
//
// Called as `driver.js PORT CONTENDERS SECONDS`. Prints `ready`. SECONDS later, prints a line of
// JSON: the grants of each contender, the seconds, and the processor time of this process in that
// time.
"use strict";

const Redis = require("ioredis").default || require("ioredis");

const LEASE_MS = 30000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function cpuSeconds() {
  const usage = process.resourceUsage();
  return (usage.userCPUTime + usage.systemCPUTime) / 1e6;
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

// Runs the contenders. `prepare(client)` returns a function that acquires and releases the lock
// once.
async function run(prepare) {
  const [port, count, seconds] = process.argv.slice(2).map(Number);
  const grants = new Array(count).fill(0);
  const clients = grants.map(() => new Redis(port));
  await Promise.all(clients.map((client) => client.ping()));
  clients.forEach(async (client, index) => {
    const once = prepare(client);
    for (;;) {
      await once().catch(fail);
      grants[index] += 1;
    }
  });
  // All contenders start meanwhile.
  await sleep(200);
  console.log("ready");
  const [before, begin, cpu] = [grants.slice(), performance.now(), cpuSeconds()];
  await sleep(seconds * 1000);
  const took = (performance.now() - begin) / 1000;
  const counted = grants.map((now, index) => now - before[index]);
  console.log(JSON.stringify({ grants: counted, seconds: took, cpu: cpuSeconds() - cpu }));
  // Exits without the contenders that are still blocked on the server.
  process.exit(0);
}

module.exports = { run, LEASE_MS };
