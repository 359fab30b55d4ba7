//! Events that remove many locks at once. A part of their cost is the server's own.

use std::time::Duration;

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{until, Crowd, Latency, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const SESSIONS: usize = 500_000;

const WAITERS: usize = 10_000;

/// Time that may come on top of the server's own part, in ms.
const BOUND_MS: f64 = 50.0;

/// Time for which PING is measured after an event without locks.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// Closes the connection to which all locks are tied.
pub fn closed(stage: &Stage, score: &mut Score) -> Result<()> {
    let sessions = stage.scaled(SESSIONS);
    let own = closed_without_locks(stage, sessions)?;
    score.latency(
        &format!("a connection with {sessions} plain keys closes"),
        &own,
    );

    let server = stage.start()?;
    let (mut asker, mut holder) = (server.connect()?, server.connect()?);
    let acquire = |key| format!("LOCK.ACQUIRE k{key} t SESSION PX 3600000");
    holder.pipeline_granted((0..sessions).map(acquire))?;
    let latency = beside_ping(&server, || {
        drop(holder);
        until("no lock left", PATIENCE, || Ok(asker.count("DBSIZE")? == 0))
    })?;
    score.bounded_latency(
        &format!("a connection with {sessions} SESSION locks closes"),
        &latency,
        own.max_ms() + BOUND_MS,
    );
    Ok(())
}

fn closed_without_locks(stage: &Stage, keys: usize) -> Result<Latency> {
    let server = stage.start()?;
    let mut writer = server.connect()?;
    let set = |key| format!("SET k{key} t PX 3600000");
    writer.pipeline_granted((0..keys).map(set))?;
    beside_ping(&server, || {
        drop(writer);
        std::thread::sleep(AFTERWARDS);
        Ok(())
    })
}

/// Flushes all keys at once, each of which has a waiter.
pub fn flushed(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let own = flushed_without_locks(stage, waiters)?;
    score.latency(
        &format!("FLUSHALL of {waiters} keys beside as many BLPOPs"),
        &own,
    );

    let server = stage.start()?;
    let mut holder = server.connect()?;
    let acquire = |key| format!("LOCK.ACQUIRE k{key} h {LONG}");
    holder.pipeline_granted((0..waiters).map(acquire))?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    crowd.send(|index| format!("LOCK.WAIT k{index} w {LONG}"))?;
    holder.until_blocked(waiters)?;
    let latency = beside_ping(&server, || {
        holder.call("FLUSHALL")?;
        crowd.replies(|reply| {
            ensure!(reply != Value::Nil, "not granted");
            Ok(())
        })
    })?;
    score.bounded_latency(
        &format!("FLUSHALL of {waiters} locks with a waiter each"),
        &latency,
        own.max_ms() + BOUND_MS,
    );
    Ok(())
}

fn flushed_without_locks(stage: &Stage, waiters: usize) -> Result<Latency> {
    let server = stage.start()?;
    let mut writer = server.connect()?;
    let set = |key| format!("SET k{key} h PX 600000");
    writer.pipeline_granted((0..waiters).map(set))?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    crowd.send(|index| format!("BLPOP list{index} 0"))?;
    writer.until_blocked(waiters)?;
    beside_ping(&server, || {
        writer.call("FLUSHALL")?;
        std::thread::sleep(AFTERWARDS);
        Ok(())
    })
}
