// Asynchronous tasks that contend for one lock, with the one client of their process.
//
// Called as `driver.js PORT CONTENDERS WARM_SECONDS HELD_MS OTHER_MS`. Each contender has the lock for
// HELD_MS, and does without it for OTHER_MS before it asks again. Prints `ready` WARM_SECONDS after the first
// grant of this process. Counts from the line `begin` to the line `end` of its input, and then prints a line
// of JSON: the grants of each contender, all waits in microseconds, the seconds, and the processor time
// of this process in that time.
"use strict";

const { createInterface } = require("node:readline");
const Redis = require("ioredis").default || require("ioredis");

const LEASE_MS = 30000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const microseconds = (ms) => Math.round(ms * 1000);

function cpuSeconds() {
  const usage = process.resourceUsage();
  return (usage.userCPUTime + usage.systemCPUTime) / 1e6;
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

// Runs the contenders. `prepare(client)` returns a function for one contender that acquires the lock,
// and returns the function that releases it.
async function run(prepare) {
  const [port, count, warm, held, other] = process.argv.slice(2).map(Number);
  const grants = new Array(count).fill(0);
  const since = new Array(count).fill(null);
  const waits = [];
  const client = new Redis(port);
  await client.ping();
  const contend = async (index) => {
    const acquire = prepare(client);
    for (;;) {
      since[index] = performance.now();
      const release = await acquire();
      waits.push(microseconds(performance.now() - since[index]));
      since[index] = null;
      grants[index] += 1;
      if (held) await sleep(held);
      await release();
      if (other) await sleep(other);
    }
  };
  grants.forEach((_, index) => contend(index).catch(fail));
  while (!grants.some((granted) => granted > 0)) await sleep(10);
  await sleep(warm * 1000);
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  console.log("ready");
  await lines.next();
  const [before, first, begin, cpu] = [grants.slice(), waits.length, performance.now(), cpuSeconds()];
  await lines.next();
  const [end, used] = [performance.now(), cpuSeconds() - cpu];
  const counted = grants.map((now, index) => now - before[index]);
  // A wait that isn't over counts with its age.
  const open = since.filter((then) => then !== null).map((then) => microseconds(end - then));
  const told = { grants: counted, waits: waits.slice(first).concat(open), seconds: (end - begin) / 1000, cpu: used };
  // Exits without the contenders that are still blocked on the server.
  process.stdout.write(`${JSON.stringify(told)}\n`, () => process.exit(0));
}

module.exports = { run, LEASE_MS };
