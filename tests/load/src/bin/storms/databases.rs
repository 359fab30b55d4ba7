//! Databases that are swapped or flushed, and a connection that is reset, beside many grants.

use std::thread;
use std::time::Duration;

use anyhow::{ensure, Result};
use redis_lock_load::{until, Connection, Latency, Server, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

/// Number of grants that are tied to a connection while databases are swapped.
const SWAPPED_SESSIONS: usize = 200_000;

/// Number of swaps that are sent at once.
const SWAPS: usize = 200;

/// Number of places, and of keys whose queue has one.
const PLACES: usize = 100_000;

/// Number of swaps that are sent one after the other. It is odd, so that the keys end up in the
/// other database.
const SINGLE_SWAPS: usize = 9;

/// Number of grants that end at once.
const ENDED_SESSIONS: usize = 300_000;

/// Time that may come on top of the server's own part, in ms.
const BOUND_MS: f64 = 20.0;

/// The same for the flush of a database in which each key had a session, in ms.
const FLUSH_BOUND_MS: f64 = 50.0;

/// Time for which PING is measured after a command.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Swaps empty databases beside session locks in another database.
pub fn swapped(stage: &Stage, score: &mut Score) -> Result<()> {
    let sessions = stage.scaled(SWAPPED_SESSIONS);
    let swaps = stage.scaled(SWAPS);
    let server = stage.start()?;
    let mut holder = tied_to_one(&server, sessions)?;
    let mut swapper = server.connect()?;
    let latency = beside_ping(&server, || {
        swapper.pipeline_granted((0..swaps).map(|_| "SWAPDB 1 2".to_owned()))
    })?;
    let what = format!("{swaps} SWAPDB beside {sessions} SESSION locks");
    score.bounded_latency(&what, &latency, BOUND_MS);
    ensure!(
        holder.count("LOCK.CHECK k0 t")? > 0,
        "a session lock is lost"
    );
    Ok(())
}

/// Swaps the database in which each key has a place in its queue.
pub fn swapped_places(stage: &Stage, score: &mut Score) -> Result<()> {
    let places = stage.scaled(PLACES);
    let server = stage.start_with(&["lock.max-tickets 0"])?;
    let mut client = server.connect()?;
    client.pipeline_granted((0..places).map(|key| format!("LOCK.ACQUIRE k{key} h {LONG}")))?;
    let queue = |key| format!("LOCK.QUEUE k{key} t {LONG} KEEP 600000");
    client.pipeline_granted((0..places).map(queue))?;
    let latency = beside_ping(&server, || {
        for _ in 0..SINGLE_SWAPS {
            client.call("SWAPDB 0 1")?;
            thread::sleep(stage.scaled_time(AFTERWARDS));
        }
        until("every place granted", PATIENCE, || {
            Ok(client.info("lock", "lock_places")? == "0")
        })
    })?;
    let what = format!("{SINGLE_SWAPS} SWAPDB of {places} keys with a place each");
    score.bounded_latency(&what, &latency, BOUND_MS);
    Ok(())
}

/// Flushes all session locks of a database at once. A lock in another database stays.
pub fn flushed(stage: &Stage, score: &mut Score) -> Result<()> {
    let sessions = stage.scaled(ENDED_SESSIONS);
    let own = flushed_without_locks(stage, sessions)?;
    score.latency(&format!("FLUSHDB ASYNC of {sessions} plain keys"), &own);

    let server = stage.start()?;
    let mut holder = tied_to_one(&server, sessions)?;
    for command in ["SELECT 1", "LOCK.ACQUIRE other t SESSION", "SELECT 0"] {
        holder.granted(command)?;
    }
    let latency = beside_ping(&server, || {
        holder.call("FLUSHDB ASYNC")?;
        until("one session", PATIENCE, || {
            Ok(holder.info("lock", "lock_sessions")? == "1")
        })?;
        thread::sleep(AFTERWARDS);
        Ok(())
    })?;
    let what = format!("FLUSHDB ASYNC of {sessions} SESSION locks");
    score.bounded_latency(&what, &latency, own.max_ms() + FLUSH_BOUND_MS);
    holder.call("SELECT 1")?;
    ensure!(
        holder.count("LOCK.CHECK other t")? > 0,
        "the other lock is lost"
    );
    Ok(())
}

fn flushed_without_locks(stage: &Stage, keys: usize) -> Result<Latency> {
    let server = stage.start()?;
    let mut writer = server.connect()?;
    writer.pipeline_granted((0..keys).map(|key| format!("SET k{key} t PX 3600000")))?;
    beside_ping(&server, || {
        writer.call("FLUSHDB ASYNC")?;
        thread::sleep(AFTERWARDS);
        Ok(())
    })
}

/// Resets a connection with many session locks, which then takes another lock. Redis 7.0 doesn't
/// report the client of a RESET, so there the locks stay until the connection closes.
pub fn reset(stage: &Stage, score: &mut Score) -> Result<()> {
    let sessions = stage.scaled(ENDED_SESSIONS);
    let server = stage.start()?;
    let mut holder = tied_to_one(&server, sessions)?;
    let mut asker = server.connect()?;
    let is_seen = !asker.info("server", "redis_version")?.starts_with("7.0.");
    let left = if is_seen { 1 } else { sessions as i64 + 1 };
    let latency = beside_ping(&server, || {
        holder.call("RESET")?;
        holder.granted("LOCK.ACQUIRE other t SESSION")?;
        until("the locks' end", PATIENCE, || {
            Ok(asker.count("DBSIZE")? == left)
        })
    })?;
    let what = format!("RESET with {sessions} SESSION locks, then one more");
    score.bounded_latency(&what, &latency, BOUND_MS);
    ensure!(
        asker.count("LOCK.CHECK other t")? > 0,
        "the new lock is lost"
    );
    Ok(())
}

/// Returns a connection to which `sessions` locks are tied.
fn tied_to_one(server: &Server, sessions: usize) -> Result<Connection> {
    let mut holder = server.connect()?;
    let acquire = |key| format!("LOCK.ACQUIRE k{key} t SESSION PX 3600000");
    holder.pipeline_granted((0..sessions).map(acquire))?;
    Ok(holder)
}
