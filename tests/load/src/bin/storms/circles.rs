//! Thousands who wait for one another, and thousands of waits of one token.

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Crowd, Server};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const WAITERS: usize = 10_000;

const SESSIONS: usize = 10_000;

/// How often somebody tries to close the circle.
const TRIES: usize = 100;

const CIRCLE_BOUND_MS: f64 = 40.0;

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
