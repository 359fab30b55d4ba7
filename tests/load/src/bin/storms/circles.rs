//! Thousands who wait for one another, and thousands of waits of one token.

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Crowd, Server};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const WAITERS: usize = 10_000;

const SESSIONS: usize = 1_000;

/// How often somebody tries to close the circle.
const TRIES: usize = 100;

const CIRCLE_BOUND_MS: f64 = 50.0;

const CANCEL_BOUND_MS: f64 = 50.0;

/// Each connection of the crowd holds a key by SESSION, as far as told, and waits for that of the next;
/// the last one of these keys is held by the connection that comes back.
fn chain(stage: &Stage, waiters: usize) -> Result<(Server, Connection, Crowd)> {
    let server = stage.start()?;
    let mut last = server.connect()?;
    last.granted(&format!("LOCK.ACQUIRE k{waiters} t SESSION {LONG}"))?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    crowd.send(|index| format!("LOCK.ACQUIRE k{index} t SESSION {LONG}"))?;
    crowd.replies(|reply| {
        ensure!(reply != Value::Nil, "not granted");
        Ok(())
    })?;
    crowd.send(|index| format!("LOCK.WAIT k{} w {LONG}", index + 1))?;
    last.until_blocked(waiters)?;
    Ok((server, last, crowd))
}

/// A chain of sessions whose last connection tries again and again to close the circle.
pub fn closed(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(SESSIONS);
    let (server, mut last, _crowd) = chain(stage, waiters)?;
    let latency = beside_ping(&server, || {
        for _ in 0..TRIES {
            let told = last.call("LOCK.WAIT k0 w");
            let refused = told.is_err_and(|error| format!("{error:#}").contains("DEADLOCK"));
            ensure!(refused, "a circle should be refused");
        }
        Ok(())
    })?;
    let what = format!("a circle of {waiters} sessions, closed {TRIES} times");
    score.bounded_latency(&what, &latency, CIRCLE_BOUND_MS);
    Ok(())
}

/// One LOCK.CANCEL gives up all waits of a token for different sets of keys.
pub fn cancelled(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let server = stage.start()?;
    let mut holder = server.connect()?;
    holder.granted(&format!("LOCK.ACQUIRE k h {LONG}"))?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    let latency = beside_ping(&server, || {
        crowd.send(|index| format!("LOCK.MWAIT 2 k k{index} w {LONG}"))?;
        holder.until_blocked(waiters)
    })?;
    let what = format!("{waiters} waits of one token");
    score.latency(&format!("{what}: begun"), &latency);
    let latency = beside_ping(&server, || {
        holder.call("LOCK.CANCEL k w")?;
        holder.until_blocked(0)
    })?;
    score.bounded_latency(
        &format!("{what}: given up by one LOCK.CANCEL"),
        &latency,
        CANCEL_BOUND_MS,
    );
    Ok(())
}
