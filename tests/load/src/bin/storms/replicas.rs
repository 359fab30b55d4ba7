//! Thousands of clients that wait for a replica that hangs (REPLICAS).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use redis::Value;
use redis_lock_load::{until, Connection, Crowd, Server, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

const WAITERS: usize = 10_000;

/// Clients that wait for the same grant.
const OF_ONE_KEY: usize = 6_000;

/// Clients that wait for grants of the same keys, and the keys.
const CROSSING: usize = 500;
const CROSSING_KEYS: usize = 500;

/// Extensions whose mean time is scored.
const EXTENSIONS: usize = 100;

/// Bound of a LOCK.EXTEND, in microseconds: many times what it takes alone.
const EXTEND_BOUND_US: f64 = 50.0;

/// Bound of a command with [`CROSSING_KEYS`] keys, in microseconds.
const MANY_KEYS_BOUND_US: f64 = 10_000.0;

/// Bound of the memory that the end of all waits takes, in MB.
const MORE_BOUND_MB: f64 = 10.0;

/// The words by which a command waits for the replica that hangs.
const HELD_BACK: &str = " REPLICAS 2 WITHIN 600000";

/// Time for which the replica hangs after all clients have begun to wait.
const STILL: Duration = Duration::from_secs(5);

const STILL_BOUND_MS: f64 = 20.0;

const ENDED_BOUND_MS: f64 = 50.0;

/// Bound of the requests for acknowledgements while no command comes: the last one may be on its way.
const REQUESTS_BOUND: f64 = 1.0;

/// Bound of the memory that is left of a client that has waited, in bytes. The backlog of replication
/// has grown meanwhile, and a server keeps some hundred bytes of a client that was blocked once. A
/// client that waits has taken 30,000 and more.
const LEFT_BOUND: f64 = 2_000.0;

/// Time in which the memory must return. Redis 8 and Valkey free some 6 MB a second.
const RETURN: Duration = Duration::from_secs(120);

/// A server whose clients wait for two replicas, of which one hangs.
struct Scene {
    server: Server,
    asker: Connection,
    stopped: Server,
    other: Server,
    crowd: Crowd,
    /// The memory in use before the clients began to wait, in bytes.
    memory: f64,
    /// The processor time that the server took until all waited.
    cpu: Duration,
}

impl Scene {
    /// Sets the scene, in which each client sends the command of its index and waits. The clients have
    /// had a grant each before, so the server has all buffers that it keeps.
    fn set(
        stage: &Stage,
        waiters: usize,
        command: impl Fn(usize) -> String + Sync,
    ) -> Result<Scene> {
        let server = stage.start_with(&["repl-diskless-sync-delay 0"])?;
        let mut asker = server.connect()?;
        let (stopped, other) = (replica_of(&server, stage)?, replica_of(&server, stage)?);
        asker.until_acknowledged_by(2)?;
        let mut crowd = Crowd::connect(server.port(), waiters)?;
        crowd.send(|index| format!("LOCK.ACQUIRE k{index} t {LONG}"))?;
        crowd.replies(granted)?;
        asker.call("FLUSHALL")?;
        asker.until_acknowledged_by(2)?;
        let memory = used_memory(&mut asker)?;
        stopped.freeze()?;
        let cpu = asker.server_cpu()?;
        crowd.send(|index| format!("{}{HELD_BACK}", command(index)))?;
        until_waits(&mut asker, waiters)?;
        let cpu = asker.server_cpu()? - cpu;
        Ok(Scene {
            server,
            asker,
            stopped,
            other,
            crowd,
            memory,
            cpu,
        })
    }
}

/// Returns the command of a client that acquires a key of its own.
fn own_key(index: usize) -> String {
    format!("LOCK.ACQUIRE k{index} t {LONG}")
}

fn until_waits(asker: &mut Connection, count: usize) -> Result<()> {
    until("the clients that wait", PATIENCE, || {
        let waits: usize = asker.info("lock", "lock_replica_waits")?.parse()?;
        Ok(waits == count)
    })
}

/// One replica hangs, and then goes on. The other one counts the requests.
pub fn stand_still(stage: &Stage, score: &mut Score) -> Result<()> {
    let Scene {
        server,
        mut asker,
        stopped,
        other,
        mut crowd,
        memory,
        ..
    } = Scene::set(stage, stage.scaled(WAITERS), own_key)?;
    let waiters = crowd.len() as f64;
    let each = (used_memory(&mut asker)? - memory) / waiters;
    let mut counter = other.connect()?;
    let mut requests = 0;
    let latency = beside_ping(&server, || {
        let first = requests_at(&mut counter)?;
        thread::sleep(stage.scaled_time(STILL));
        requests = requests_at(&mut counter)? - first;
        Ok(())
    })?;
    let answered = crowd.answered()?;
    ensure!(answered == 0, "{answered} are answered");
    let what = format!("{waiters} clients wait for a replica that hangs");
    score.bounded_latency(&what, &latency, STILL_BOUND_MS);
    score.at_most("  REPLCONF GETACK", requests as f64, REQUESTS_BOUND, "");
    score.number("  memory of a client that waits", each, "bytes");

    let begun = Instant::now();
    let latency = beside_ping(&server, || {
        stopped.thaw()?;
        crowd.replies(granted)
    })?;
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    score.bounded_latency("  the replica goes on", &latency, ENDED_BOUND_MS);
    score.number("  all have their reply after", took_ms, "ms");
    asker.call("FLUSHALL")?;
    asker.call("CONFIG SET hz 100")?;
    let left = memory_left(&mut asker, memory, waiters)?;
    let what = "  memory that is left of each";
    score.at_most(what, left, LEFT_BOUND, "bytes");
    Ok(())
}

/// All grants end by one FLUSHALL while the clients wait.
pub fn flushed(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let what = format!("FLUSHALL while {waiters} clients wait for a replica");
    end_all(Scene::set(stage, waiters, own_key)?, &what, score)
}

/// All clients wait for the same grant of one key, which is extended and then ends.
pub fn one_key(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(OF_ONE_KEY);
    let command = |_| format!("LOCK.ACQUIRE k t {LONG}");
    let mut scene = Scene::set(stage, waiters, command)?;
    for _ in 0..EXTENSIONS {
        scene.asker.count(&format!("LOCK.EXTEND k t {LONG}"))?;
    }
    let what = format!("LOCK.EXTEND beside {waiters} who wait for that grant");
    score.at_most(
        &what,
        command_us(&mut scene.asker, "lock.extend")?,
        EXTEND_BOUND_US,
        "us",
    );
    let what = format!("FLUSHALL ends the grant that {waiters} clients wait with");
    end_all(scene, &what, score)
}

/// All clients wait for the grants of the same keys, which are extended and then end.
pub fn crossing(stage: &Stage, score: &mut Score) -> Result<()> {
    let (waiters, keys) = (stage.scaled(CROSSING), CROSSING_KEYS);
    let acquire = format!("{} t {LONG}", on_keys("MACQUIRE", keys));
    let mut scene = Scene::set(stage, waiters, |_| acquire.clone())?;
    let filled_us = scene.cpu.as_secs_f64() * 1e6 / waiters as f64;
    let what = format!("each of {waiters} MACQUIREs of the same {keys} keys");
    score.at_most(&what, filled_us, MANY_KEYS_BOUND_US, "us of the server");
    let extend = format!("{} t {LONG}", on_keys("MEXTEND", keys));
    for _ in 0..EXTENSIONS {
        scene.asker.count(&extend)?;
    }
    let extended_us = command_us(&mut scene.asker, "lock.mextend")?;
    score.at_most(
        "  LOCK.MEXTEND of them beside that",
        extended_us,
        MANY_KEYS_BOUND_US,
        "us",
    );
    end_all(scene, "  FLUSHALL", score)
}

/// The clients have their replies at once, and in another round they are killed.
pub fn crossing_ended(stage: &Stage, score: &mut Score) -> Result<()> {
    let (waiters, keys) = (stage.scaled(CROSSING), CROSSING_KEYS);
    let acquire = format!("{} t {LONG}", on_keys("MACQUIRE", keys));
    let scene = || Scene::set(stage, waiters, |_| acquire.clone());
    let mut acknowledged = scene()?;
    let (stopped, crowd) = (&acknowledged.stopped, &mut acknowledged.crowd);
    let latency = beside_ping(&acknowledged.server, || {
        stopped.thaw()?;
        crowd.replies(granted)
    })?;
    let what = format!("{waiters} replies about {keys} keys each are acknowledged");
    score.bounded_latency(&what, &latency, ENDED_BOUND_MS);

    let scene = scene()?;
    let mut killer = scene.server.connect()?;
    let latency = beside_ping(&scene.server, || {
        let killed = killer.count("CLIENT KILL TYPE normal")?;
        ensure!(killed as usize >= waiters, "killed {killed} of {waiters}");
        until_waits(&mut killer, 0)
    })?;
    let what = format!("{waiters} such clients are killed");
    score.bounded_latency(&what, &latency, ENDED_BOUND_MS);
    scene.stopped.thaw()
}

/// Ends all grants by FLUSHALL, and scores the latency and the memory that it takes meanwhile.
fn end_all(mut scene: Scene, what: &str, score: &mut Score) -> Result<()> {
    let (asker, crowd) = (&mut scene.asker, &mut scene.crowd);
    let before = peak_memory(asker)?;
    let latency = beside_ping(&scene.server, || {
        asker.call("FLUSHALL")?;
        crowd.errors("NOREPLICAS")
    })?;
    score.bounded_latency(what, &latency, ENDED_BOUND_MS);
    let more = (peak_memory(asker)? - before) / 1e6;
    score.at_most(
        "  memory that it takes meanwhile",
        more,
        MORE_BOUND_MB,
        "MB",
    );
    scene.stopped.thaw()
}

/// Returns the mean time of a command at the server, in microseconds.
fn command_us(asker: &mut Connection, command: &str) -> Result<f64> {
    let stats = asker.info("commandstats", &format!("cmdstat_{command}"))?;
    let mean = stats
        .split(',')
        .find_map(|field| field.strip_prefix("usec_per_call="));
    Ok(mean.context("no mean time")?.parse()?)
}

/// Returns the most memory that the server has used so far, in bytes.
fn peak_memory(asker: &mut Connection) -> Result<f64> {
    Ok(asker.info("memory", "used_memory_peak")?.parse()?)
}

fn replica_of(server: &Server, stage: &Stage) -> Result<Server> {
    let replica = stage.start()?;
    let command = format!("REPLICAOF 127.0.0.1 {}", server.port());
    replica.connect()?.call(&command)?;
    Ok(replica)
}

fn granted(reply: Value) -> Result<()> {
    ensure!(matches!(reply, Value::Array(_)), "not granted: {reply:?}");
    Ok(())
}

fn used_memory(asker: &mut Connection) -> Result<f64> {
    Ok(asker.info("memory", "used_memory")?.parse()?)
}

/// Returns the bytes that are left of each client, as soon as they are within the bound. The server
/// frees its records of blocked clients 50 at a time, by its own timer.
fn memory_left(asker: &mut Connection, before: f64, clients: f64) -> Result<f64> {
    let deadline = Instant::now() + RETURN;
    loop {
        let left = (used_memory(asker)? - before) / clients;
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
