//! Permits that become free at once, for thousands of holders that each lack a permit.

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{until, Connection, Server, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const TOKENS: usize = 10_000;

const PING_BOUND_MS: f64 = 20.0;

/// Bound of the server's processor time for each grant, in microseconds.
const GRANT_BOUND_US: f64 = 100.0;

/// Starts a server at which each token has one permit and waits for two, and `h` has all others.
fn who_lack_one_each(stage: &Stage, tokens: usize) -> Result<(Server, Connection)> {
    let server = stage.start()?;
    let mut client = server.connect()?;
    let shared = format!("SHARED LIMIT {} {LONG}", 2 * tokens);
    client.granted(&format!("LOCK.ACQUIRE k h {shared} PERMITS {}", 2 * tokens))?;
    let queue = |index| format!("LOCK.QUEUE k t{index} {shared} KEEP 600000");
    client.pipeline((0..tokens).map(queue), |_| Ok(()))?;
    let more = |index| format!("LOCK.MQUEUE 2 j{index} k t{index} {shared} PERMITS 2 KEEP 600000");
    client.pipeline((0..tokens).map(more), |_| Ok(()))?;
    client.granted(&format!("LOCK.ACQUIRE k h {shared} PERMITS {tokens}"))?;
    // A place counts once for each of its keys.
    until_left(&mut client, 2 * tokens)?;
    client.pipeline((0..tokens).map(queue), |reply| {
        ensure!(!matches!(reply, Value::Int(_)), "not granted: {reply:?}");
        Ok(())
    })?;
    Ok((server, client))
}

fn until_left(client: &mut Connection, places: usize) -> Result<()> {
    until("the places that are left", PATIENCE, || {
        Ok(client.info("lock", "lock_places")? == places.to_string())
    })
}

/// Frees a permit for each token by one RELEASE.
pub fn freed(stage: &Stage, score: &mut Score) -> Result<()> {
    let tokens = stage.scaled(TOKENS);
    let (server, mut client) = who_lack_one_each(stage, tokens)?;
    let mut asker = server.connect()?;
    let before = asker.server_cpu()?;
    let latency = beside_ping(&server, || {
        client.call("LOCK.RELEASE k h")?;
        until_left(&mut client, 0)
    })?;
    let what = format!("{tokens} that lack a permit each, one RELEASE");
    score.bounded_latency(&what, &latency, PING_BOUND_MS);
    let each_us = (asker.server_cpu()? - before).as_secs_f64() * 1e6 / tokens as f64;
    score.at_most(&what, each_us, GRANT_BOUND_US, "us of the server, each");
    Ok(())
}
