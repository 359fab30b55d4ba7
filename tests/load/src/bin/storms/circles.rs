//! Thousands who wait for one another, and thousands of waits of one token.

use std::time::Duration;

use anyhow::{bail, ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Crowd, Server};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

const WAITERS: usize = 10_000;

const SESSIONS: usize = 10_000;

/// How often somebody tries to close the circle.
const TRIES: usize = 100;

const CIRCLE_BOUND_MS: f64 = 40.0;

/// How many wait for many keys each, and for how many.
const MWAITS: usize = 1_000;
const KEYS: usize = 1_000;

/// The sessions of one connection, beside as many queues.
const TIES: usize = 100_000;

/// The bound of the server's CPU time for one wait that looks for deadlocks.
const SEARCH_BOUND_MS: f64 = 20.0;

const CANCEL_BOUND_MS: f64 = 40.0;

/// What each connection of a crowd holds by SESSION, and what it waits for then.
struct Scene {
    name: &'static str,
    holds: fn(usize) -> String,
    waits_for: fn(usize) -> String,
    /// What the one holds by SESSION that tries to close the circle, where there are so many others.
    closer_holds: fn(usize) -> String,
    /// What it waits for.
    closes: &'static str,
}

/// Each waits for the next.
const CHAIN: Scene = Scene {
    name: "a circle of",
    holds: |index| format!("k{index} t"),
    waits_for: |index| format!("k{} w", index + 1),
    closer_holds: |count| format!("k{count} t"),
    closes: "k0 w",
};

/// All share what one wants, and wait for what that one has.
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

    /// Somebody tries again and again to close the circle.
    fn play(&self, stage: &Stage, score: &mut Score) -> Result<()> {
        let waiters = stage.scaled(SESSIONS);
        let (server, mut closer, _crowd) = self.prepare(stage, waiters)?;
        let latency = beside_ping(&server, || {
            for _ in 0..TRIES {
                let told = closer.call(&format!("LOCK.WAIT {}", self.closes));
                let refused = told.is_err_and(|error| format!("{error:#}").contains("DEADLOCK"));
                ensure!(refused, "a circle should be refused");
            }
            Ok(())
        })?;
        let what = format!("{} {waiters} sessions, closed {TRIES} times", self.name);
        score.bounded_latency(&what, &latency, CIRCLE_BOUND_MS);
        Ok(())
    }
}

/// Circles of sessions that somebody tries to close.
pub fn closed(stage: &Stage, score: &mut Score) -> Result<()> {
    CHAIN.play(stage, score)?;
    CROWD.play(stage, score)
}

/// Searches for a deadlock that are bounded, whether they find one or are given up.
pub fn bounded(stage: &Stage, score: &mut Score) -> Result<()> {
    beside_many_keys(stage, score)?;
    with_many_ties(stage, score)
}

/// Somebody waits who has one of many keys for which many wait.
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

/// Somebody waits to whom many grants are tied, beside many queues.
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

/// Somebody begins a wait again and again.
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
