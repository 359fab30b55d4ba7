//! 10,000 clients that wait for a replica that stands still (REPLICAS).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use redis::Value;
use redis_lock_load::{until, Connection, Crowd, Server, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const WAITERS: usize = 10_000;

/// Time for which the replica stands still after all clients have begun to wait.
const STILL: Duration = Duration::from_secs(5);

const STILL_BOUND_MS: f64 = 20.0;

const ANSWERED_BOUND_MS: f64 = 50.0;

/// Requests for acknowledgements a second while no command comes.
const REQUESTS_BOUND: f64 = 101.0;

/// Bound of the memory that is left of a client that has waited, in bytes.
const LEFT_BOUND: f64 = 300.0;

/// One replica stands still. The other one acknowledges, and counts the requests.
pub fn stand_still(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let lines = ["repl-diskless-sync-delay 0", "lock.max-waiters 0"];
    let server = stage.start_with(&lines)?;
    let mut asker = server.connect()?;
    let (stopped, other) = (replica_of(&server, stage)?, replica_of(&server, stage)?);
    let mut counter = other.connect()?;
    until_attached(&mut asker, 2)?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    acquire_all(&mut crowd, "")?;
    crowd.replies(granted)?;
    asker.call("FLUSHALL")?;
    until_attached(&mut asker, 2)?;
    let before = used_memory(&mut asker)?;

    stopped.freeze()?;
    acquire_all(&mut crowd, "REPLICAS 2 WITHIN 600000")?;
    until("all clients wait", PATIENCE, || {
        let waits: usize = asker.info("lock", "lock_replica_waits")?.parse()?;
        Ok(waits == waiters)
    })?;
    let waiting = used_memory(&mut asker)?;
    let (mut requests, mut took) = (0, Duration::ZERO);
    let latency = beside_ping(&server, || {
        let (first, begun) = (requests_at(&mut counter)?, Instant::now());
        thread::sleep(stage.scaled_time(STILL));
        requests = requests_at(&mut counter)? - first;
        took = begun.elapsed();
        Ok(())
    })?;
    let answered = crowd.answered()?;
    ensure!(answered == 0, "{answered} are answered");
    let what = format!("{waiters} clients wait for a replica that stands still");
    score.bounded_latency(&what, &latency, STILL_BOUND_MS);
    let rate = requests.saturating_sub(1) as f64 / took.as_secs_f64();
    score.at_most("  REPLCONF GETACK", rate, REQUESTS_BOUND, "a second");
    let each = (waiting - before) / waiters as f64;
    score.number("  memory of a client that waits", each, "bytes");

    let begun = Instant::now();
    let latency = beside_ping(&server, || {
        stopped.thaw()?;
        crowd.replies(granted)
    })?;
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    score.bounded_latency("  the replica goes on", &latency, ANSWERED_BOUND_MS);
    score.number("  all have their reply after", took_ms, "ms");
    asker.call("FLUSHALL")?;
    let left = memory_left(&mut asker, before, waiters)?;
    let what = "  memory that is left of each";
    score.at_most(what, left, LEFT_BOUND, "bytes");
    Ok(())
}

fn replica_of(server: &Server, stage: &Stage) -> Result<Server> {
    let replica = stage.start()?;
    let command = format!("REPLICAOF 127.0.0.1 {}", server.port());
    replica.connect()?.call(&command)?;
    Ok(replica)
}

/// Waits until so many replicas acknowledge. A replica that has just been synchronised does so only
/// after its first own acknowledgement, so it is asked twice.
fn until_attached(asker: &mut Connection, replicas: i64) -> Result<()> {
    for _ in 0..2 {
        until("all replicas", PATIENCE, || {
            asker.call("SET attached 1")?;
            Ok(asker.count(&format!("WAIT {replicas} 2000"))? == replicas)
        })?;
    }
    Ok(())
}

fn acquire_all(crowd: &mut Crowd, options: &str) -> Result<()> {
    crowd.send(|index| {
        let command = format!("LOCK.ACQUIRE k{index} t {LONG} {options}");
        command.trim_end().to_owned()
    })
}

fn granted(reply: Value) -> Result<()> {
    ensure!(matches!(reply, Value::Array(_)), "not granted: {reply:?}");
    Ok(())
}

fn used_memory(asker: &mut Connection) -> Result<f64> {
    Ok(asker.info("memory", "used_memory")?.parse()?)
}

/// Returns the bytes that are left of each client, as soon as they are within the bound. The server
/// frees the memory of blocked clients and of replies in parts, by its own timer.
fn memory_left(asker: &mut Connection, before: f64, clients: usize) -> Result<f64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = (used_memory(asker)? - before) / clients as f64;
        if left <= LEFT_BOUND || Instant::now() > deadline {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the number of requests for acknowledgements that a replica has had.
fn requests_at(replica: &mut Connection) -> Result<u64> {
    let stats = replica.info("commandstats", "cmdstat_replconf")?;
    let calls = stats.split(['=', ',']).nth(1).context("no calls")?;
    Ok(calls.parse()?)
}
