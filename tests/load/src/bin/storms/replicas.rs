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

const ENDED_BOUND_MS: f64 = 50.0;

/// Bound of the requests for acknowledgements while no command comes: the last one may be on its way.
const REQUESTS_BOUND: f64 = 1.0;

/// Bound of the memory that is left of a client that has waited, in bytes. The backlog of replication
/// has grown meanwhile, and a server keeps some hundred bytes of a client that was blocked once. A
/// client that waits has taken 30,000 and more.
const LEFT_BOUND: f64 = 2_000.0;

/// Time in which the memory must return. Redis 8 and Valkey free some 6 MB a second.
const RETURN: Duration = Duration::from_secs(120);

/// A server whose clients wait for two replicas, of which one stands still.
struct Scene {
    server: Server,
    asker: Connection,
    stopped: Server,
    other: Server,
    crowd: Crowd,
    /// The memory in use before the clients began to wait, in bytes.
    memory: f64,
}

impl Scene {
    /// Sets the scene. The clients have had a grant each before, so the server has all buffers that it
    /// keeps.
    fn set(stage: &Stage) -> Result<Scene> {
        let waiters = stage.scaled(WAITERS);
        let server = stage.start_with(&["repl-diskless-sync-delay 0"])?;
        let mut asker = server.connect()?;
        let (stopped, other) = (replica_of(&server, stage)?, replica_of(&server, stage)?);
        asker.until_acknowledged_by(2)?;
        let mut crowd = Crowd::connect(server.port(), waiters)?;
        acquire_all(&mut crowd, "")?;
        crowd.replies(granted)?;
        asker.call("FLUSHALL")?;
        asker.until_acknowledged_by(2)?;
        let memory = used_memory(&mut asker)?;
        stopped.freeze()?;
        acquire_all(&mut crowd, " REPLICAS 2 WITHIN 600000")?;
        until("all clients wait", PATIENCE, || {
            let waits: usize = asker.info("lock", "lock_replica_waits")?.parse()?;
            Ok(waits == waiters)
        })?;
        Ok(Scene {
            server,
            asker,
            stopped,
            other,
            crowd,
            memory,
        })
    }
}

/// One replica stands still, and then goes on. The other one counts the requests.
pub fn stand_still(stage: &Stage, score: &mut Score) -> Result<()> {
    let Scene {
        server,
        mut asker,
        stopped,
        other,
        mut crowd,
        memory,
    } = Scene::set(stage)?;
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
    let what = format!("{waiters} clients wait for a replica that stands still");
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
    let mut scene = Scene::set(stage)?;
    let waiters = scene.crowd.len();
    let (asker, crowd) = (&mut scene.asker, &mut scene.crowd);
    let latency = beside_ping(&scene.server, || {
        asker.call("FLUSHALL")?;
        crowd.errors("NOREPLICAS")
    })?;
    let what = format!("FLUSHALL while {waiters} clients wait for a replica");
    score.bounded_latency(&what, &latency, ENDED_BOUND_MS);
    scene.stopped.thaw()
}

fn replica_of(server: &Server, stage: &Stage) -> Result<Server> {
    let replica = stage.start()?;
    let command = format!("REPLICAOF 127.0.0.1 {}", server.port());
    replica.connect()?.call(&command)?;
    Ok(replica)
}

fn acquire_all(crowd: &mut Crowd, options: &str) -> Result<()> {
    crowd.send(|index| format!("LOCK.ACQUIRE k{index} t {LONG}{options}"))
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
