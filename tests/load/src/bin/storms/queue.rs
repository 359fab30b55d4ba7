//! One key for which thousands of clients wait.

use std::thread;
use std::time::Duration;

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{until, Connection, Crowd, Latency, Server, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const WAITERS: usize = 10_000;

const KILLED: usize = 5_000;

/// Bound of a PING's latency while leases expire, in ms.
const EXPIRATIONS_BOUND_MS: f64 = 20.0;

/// Bound of a PING's latency while one RELEASE admits all shared waiters, in ms.
const SHARED_BOUND_MS: f64 = 50.0;

/// Time for which leases of 5 ms end one after the other.
const EXPIRATIONS: Duration = Duration::from_secs(5);
/// Number of hand-overs that are required in this time.
const HAND_OVERS: usize = 600;

/// Starts a server at which `h` holds `k`, and `count` clients wait. Each client sends `command`
/// with its number for `#`.
fn crowded(stage: &Stage, count: usize, command: &str) -> Result<(Server, Connection, Crowd)> {
    let server = stage.start()?;
    let mut holder = server.connect()?;
    holder.granted(&format!("LOCK.ACQUIRE k h {LONG}"))?;
    let mut crowd = Crowd::connect(server.port(), count)?;
    crowd.send(|index| command.replace('#', &index.to_string()))?;
    holder.until_blocked(count)?;
    Ok((server, holder, crowd))
}

/// Grants leases of 5 ms that no client releases, so each hand-over follows an expiration.
pub fn expirations(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let (server, mut holder, crowd) = crowded(stage, waiters, "LOCK.WAIT k w# PX 5")?;
    let time = stage.scaled_time(EXPIRATIONS);
    let latency = beside_ping(&server, || {
        holder.call("LOCK.RELEASE k h")?;
        thread::sleep(time);
        Ok(())
    })?;
    let answered = crowd.answered()?;
    let what = format!("{waiters} waiters, leases of 5 ms");
    score.bounded_latency(&what, &latency, EXPIRATIONS_BOUND_MS);
    score.at_least(
        &format!("{what}: hand-overs in {time:?}"),
        answered as f64,
        stage.scaled(HAND_OVERS) as f64,
        "",
    );
    Ok(())
}

/// Admits all shared waiters by one RELEASE.
pub fn admitted(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let command = format!("LOCK.WAIT k w# SHARED {LONG}");
    let (server, mut holder, mut crowd) = crowded(stage, waiters, &command)?;
    let latency = beside_ping(&server, || {
        holder.call("LOCK.RELEASE k h")?;
        crowd.replies(|reply| {
            ensure!(reply != Value::Nil, "not granted");
            Ok(())
        })
    })?;
    let what = format!("{waiters} shared waiters, one RELEASE");
    score.bounded_latency(&what, &latency, SHARED_BOUND_MS);
    Ok(())
}

/// Admits all shared waiters and kills them in the same EXEC. Their hand-overs are taken back.
pub fn killed(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(KILLED);
    let own = killed_without_locks(stage, waiters)?;
    score.latency(&format!("{waiters} BLPOPs killed in EXEC"), &own);

    let command = format!("LOCK.WAIT k w# SHARED {LONG}");
    let (server, mut holder, _crowd) = crowded(stage, waiters, &command)?;
    let latency = beside_ping(&server, || {
        kill_all(&mut holder, "LOCK.RELEASE k h", waiters)?;
        until("a free lock", PATIENCE, || {
            Ok(holder.count("EXISTS k")? == 0)
        })
    })?;
    let what = format!("{waiters} shared waiters admitted and killed in EXEC");
    score.bounded_latency(&what, &latency, SHARED_BOUND_MS);
    Ok(())
}

/// Measures the server's own part of [`killed`].
fn killed_without_locks(stage: &Stage, waiters: usize) -> Result<Latency> {
    let server = stage.start()?;
    let mut killer = server.connect()?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    crowd.send(|_| "BLPOP k 0".to_owned())?;
    killer.until_blocked(waiters)?;
    beside_ping(&server, || kill_all(&mut killer, "PING", waiters))
}

fn kill_all(killer: &mut Connection, before: &str, count: usize) -> Result<()> {
    for command in ["MULTI", before, "CLIENT KILL TYPE normal"] {
        killer.call(command)?;
    }
    let Value::Array(replies) = killer.call("EXEC")? else {
        anyhow::bail!("EXEC was refused");
    };
    ensure!(
        replies.last() == Some(&Value::Int(count as i64)),
        "killed {:?} of {count}",
        replies.last()
    );
    Ok(())
}
