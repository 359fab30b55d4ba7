//! Thousands of sessions that wait for each other, and thousands of waits of one token.

use std::time::Duration;

use anyhow::{bail, ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Crowd, Server};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

const WAITERS: usize = 10_000;

const SESSIONS: usize = 10_000;

/// Number of attempts to close the deadlock.
const TRIES: usize = 100;

const CIRCLE_BOUND_MS: f64 = 40.0;

/// Number of MWAITs, and of keys of each MWAIT.
const MWAITS: usize = 1_000;
const KEYS: usize = 1_000;

/// Number of sessions of one connection, and of queues beside them.
const TIES: usize = 100_000;

/// Bound of the server's CPU time for one wait that searches for deadlocks, in ms.
const SEARCH_BOUND_MS: f64 = 20.0;

const CANCEL_BOUND_MS: f64 = 40.0;

/// A deadlock that lacks one wait. Each connection of a crowd holds a lock by SESSION, and then
/// waits for another lock.
struct Scene {
    name: &'static str,
    holds: fn(usize) -> String,
    waits_for: fn(usize) -> String,
    /// The lock that the closing connection holds by SESSION, by the number of other connections.
    closer_holds: fn(usize) -> String,
    /// The lock for which the closing connection waits.
    closes: &'static str,
}

/// Each connection waits for the next connection.
const CHAIN: Scene = Scene {
    name: "a circle of",
    holds: |index| format!("k{index} t"),
    waits_for: |index| format!("k{} w", index + 1),
    closer_holds: |count| format!("k{count} t"),
    closes: "k0 w",
};

/// All connections share the lock that the closing connection wants, and wait for its own lock.
const CROWD: Scene = Scene {
    name: "a circle through a lock and a queue of",
    holds: |index| format!("shared t{index} SHARED"),
    waits_for: |index| format!("own w{index}"),
    closer_holds: |_| "own t".to_owned(),
    closes: "shared w",
};

impl Scene {
    fn prepare(&self, stage: &Stage, waiters: usize) -> Result<(Server, Connection, Crowd)> {
        let server = stage.start()?;
        let mut closer = server.connect()?;
        let own = (self.closer_holds)(waiters);
        closer.granted(&format!("LOCK.ACQUIRE {own} SESSION {LONG}"))?;
        let mut crowd = Crowd::connect(server.port(), waiters)?;
        let holds = self.holds;
        crowd.send(|index| format!("LOCK.ACQUIRE {} SESSION {LONG}", holds(index)))?;
        crowd.replies(|reply| {
            ensure!(reply != Value::Nil, "not granted");
            Ok(())
        })?;
        let waits_for = self.waits_for;
        crowd.send(|index| format!("LOCK.WAIT {} {LONG}", waits_for(index)))?;
        closer.until_blocked(waiters)?;
        Ok((server, closer, crowd))
    }

    /// Tries again and again to close the deadlock, and scores PING meanwhile.
    fn play(&self, stage: &Stage, score: &mut Score) -> Result<()> {
        let waiters = stage.scaled(SESSIONS);
        let (server, mut closer, _crowd) = self.prepare(stage, waiters)?;
        let latency = beside_ping(&server, || {
            for _ in 0..TRIES {
                let told = closer.call(&format!("LOCK.WAIT {}", self.closes));
                let refused = told.is_err_and(|error| format!("{error:#}").contains("DEADLOCK"));
                ensure!(refused, "a deadlock should be refused");
            }
            Ok(())
        })?;
        let what = format!("{} {waiters} sessions, closed {TRIES} times", self.name);
        score.bounded_latency(&what, &latency, CIRCLE_BOUND_MS);
        Ok(())
    }
}

/// Plays deadlocks of sessions that one more session tries to close.
pub fn closed(stage: &Stage, score: &mut Score) -> Result<()> {
    CHAIN.play(stage, score)?;
    CROWD.play(stage, score)
}

/// Plays deadlock searches, which are bounded whether they find a deadlock or are given up.
pub fn bounded(stage: &Stage, score: &mut Score) -> Result<()> {
    beside_many_keys(stage, score)?;
    with_many_ties(stage, score)
}

/// Lets the holder of one key wait, while many clients wait for that key and many others.
fn beside_many_keys(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(MWAITS);
    let server = stage.start()?;
    let (mut closer, mut other) = (server.connect()?, server.connect()?);
    closer.granted(&format!("LOCK.ACQUIRE k0 t SESSION {LONG}"))?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    crowd.send(|index| format!("LOCK.ACQUIRE own{index} t SESSION {LONG}"))?;
    crowd.replies(|_| Ok(()))?;
    let mwait = on_keys("MWAIT", KEYS);
    crowd.send(|index| format!("{mwait} w{index} {LONG}"))?;
    other.until_blocked(waiters)?;
    let what = format!("LOCK.WAIT beside {waiters} MWAITs of {KEYS} keys");
    search(
        "LOCK.WAIT own0 c BLOCK 1",
        &mut closer,
        &mut other,
        &what,
        score,
    )
}

/// Lets a connection wait to which many grants are tied, beside many queues.
fn with_many_ties(stage: &Stage, score: &mut Score) -> Result<()> {
    let ties = stage.scaled(TIES);
    let server = stage.start()?;
    let (mut closer, mut other) = (server.connect()?, server.connect()?);
    let mut waiter = server.connect()?;
    let acquire = |key| format!("LOCK.ACQUIRE k{key} t SESSION {LONG}");
    closer.pipeline_granted((0..ties).map(acquire))?;
    let queue = |key| format!("LOCK.QUEUE k{key} p KEEP 600000 {LONG}");
    other.pipeline_granted((0..ties).map(queue))?;
    other.granted(&format!("LOCK.ACQUIRE own h {LONG}"))?;
    waiter.send(&format!("LOCK.WAIT own w {LONG}"))?;
    other.until_blocked(1)?;
    let what = format!("LOCK.WAIT with {ties} sessions beside as many queues");
    search(
        "LOCK.WAIT own c BLOCK 1",
        &mut closer,
        &mut other,
        &what,
        score,
    )
}

/// Begins a wait again and again, and scores the server's CPU time of each.
fn search(
    wait: &str,
    closer: &mut Connection,
    other: &mut Connection,
    what: &str,
    score: &mut Score,
) -> Result<()> {
    let before = other.server_cpu()?;
    for _ in 0..TRIES {
        match closer.call(wait) {
            Ok(Value::Nil) => {}
            Ok(granted) => bail!("granted: {granted:?}"),
            Err(error) => ensure!(format!("{error:#}").contains("DEADLOCK"), error),
        }
    }
    let used: Duration = other.server_cpu()? - before;
    let each_ms = used.as_secs_f64() * 1e3 / TRIES as f64;
    score.at_most(what, each_ms, SEARCH_BOUND_MS, "ms CPU each");
    Ok(())
}

/// Cancels all waits of a token, for different sets of keys, by one LOCK.CANCEL.
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
