//! 1,000 clients that each wait for the same 100 keys.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Crowd, Server};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

const CLIENTS: usize = 1_000;

const KEYS: usize = 100;

const BOUND_MS: f64 = 50.0;

/// When the clients' BLOCKs end, counted from the first one's command.
const END: Duration = Duration::from_secs(5);

struct Scene {
    server: Server,
    holder: Connection,
    crowd: Crowd,
    /// The command up to the token.
    mwait: String,
}

impl Scene {
    fn prepare(stage: &Stage) -> Result<Scene> {
        let server = stage.start()?;
        let mut holder = server.connect()?;
        holder.granted(&format!("{} h {LONG}", on_keys("MACQUIRE", KEYS)))?;
        let crowd = Crowd::connect(server.port(), stage.scaled(CLIENTS))?;
        Ok(Scene {
            server,
            holder,
            crowd,
            mwait: on_keys("MWAIT", KEYS),
        })
    }
}

/// All queue up, and all their BLOCKs end in the same moment.
pub fn time_outs(stage: &Stage, score: &mut Score) -> Result<()> {
    let Scene {
        server,
        mut holder,
        mut crowd,
        mwait,
    } = Scene::prepare(stage)?;
    let clients = crowd.len();
    let end = Instant::now() + END;
    let latency = beside_ping(&server, || {
        crowd.send(|index| {
            let left = end.saturating_duration_since(Instant::now()).as_millis();
            format!("{mwait} w{index} BLOCK {}", left.max(1))
        })?;
        holder.until_blocked(clients)
    })?;
    let what = format!("{clients} clients queue up for {KEYS} keys each");
    score.bounded_latency(&what, &latency, BOUND_MS);

    let latency = beside_ping(&server, || {
        crowd.replies(|reply| {
            ensure!(reply == Value::Nil, "granted what another holds: {reply:?}");
            Ok(())
        })
    })?;
    let what = format!("{clients} clients with {KEYS} keys each: all BLOCKs end");
    score.bounded_latency(&what, &latency, BOUND_MS);
    Ok(())
}

/// All queue up, and have all keys in turn: each releases them as it has read its grant.
pub fn grants(stage: &Stage, score: &mut Score) -> Result<()> {
    let Scene {
        server,
        mut holder,
        mut crowd,
        mwait,
    } = Scene::prepare(stage)?;
    let clients = crowd.len();
    crowd.send(|index| format!("{mwait} w{index} {LONG}"))?;
    holder.until_blocked(clients)?;
    let mrelease = on_keys("MRELEASE", KEYS);
    let latency = beside_ping(&server, || {
        holder.call(&format!("{mrelease} h"))?;
        crowd.relay(|index| format!("{mrelease} w{index}"))
    })?;
    let what = format!("{clients} clients with {KEYS} keys each: released in turn");
    score.bounded_latency(&what, &latency, BOUND_MS);
    Ok(())
}
