//! Many clients that all wait for the same keys.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Crowd, Latency, Server};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

const CLIENTS: usize = 1_000;

const KEYS: usize = 100;

const BOUND_MS: f64 = 50.0;

/// Number of clients that are killed at once, and of keys for which each client waits.
const KILLED: usize = 500;
const KILLED_KEYS: usize = 1_000;

/// Time that may come on top of the kill of as many BLPOPs of one key, in ms, because the server
/// frees 1,000 words of each client.
const KILLED_BOUND_MS: f64 = 100.0;

/// Time from the first client's command to the end of all BLOCKs.
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

/// Lets all clients queue up, and all their BLOCKs end at the same time.
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

/// Lets all clients queue up and get all keys in turn. Each client releases the keys once it has
/// read its grant.
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

/// Kills all clients. `keep` is appended to the command of each client.
pub fn killed(keep: &str, stage: &Stage, score: &mut Score) -> Result<()> {
    let clients = stage.scaled(KILLED);
    let own = killed_without_locks(stage, clients)?;
    score.latency(&format!("{clients} BLPOPs killed"), &own);

    let server = stage.start()?;
    let mut holder = server.connect()?;
    holder.granted(&format!("{} h {LONG}", on_keys("MACQUIRE", KILLED_KEYS)))?;
    let mut crowd = Crowd::connect(server.port(), clients)?;
    let mwait = on_keys("MWAIT", KILLED_KEYS);
    crowd.send(|index| format!("{mwait} w{index} {LONG}{keep}"))?;
    holder.until_blocked(clients)?;
    let mut killer = server.connect()?;
    let latency = beside_ping(&server, || {
        kill(&mut killer, clients)?;
        holder_passes_on(&mut killer)
    })?;
    let what = format!("{clients} MWAITs of {KILLED_KEYS} keys{keep} killed");
    score.bounded_latency(&what, &latency, own.max_ms() + KILLED_BOUND_MS);
    Ok(())
}

/// Checks that no waiter is left that would be granted a lock before a new client.
fn holder_passes_on(client: &mut Connection) -> Result<()> {
    let released = client.count(&format!("{} h", on_keys("MRELEASE", KILLED_KEYS)))?;
    ensure!(released as usize == KILLED_KEYS, "released {released}");
    client.granted(&format!("{} next {LONG}", on_keys("MACQUIRE", KILLED_KEYS)))?;
    Ok(())
}

/// Measures the server's own part of [`killed`].
fn killed_without_locks(stage: &Stage, clients: usize) -> Result<Latency> {
    let server = stage.start()?;
    let mut crowd = Crowd::connect(server.port(), clients)?;
    crowd.send(|_| "BLPOP k 0".to_owned())?;
    let mut killer = server.connect()?;
    killer.until_blocked(clients)?;
    beside_ping(&server, || kill(&mut killer, clients))
}

/// Kills all clients except this one, and waits until no other client is blocked.
fn kill(killer: &mut Connection, clients: usize) -> Result<()> {
    let killed = killer.count("CLIENT KILL TYPE normal")?;
    ensure!(killed as usize >= clients, "killed {killed} of {clients}");
    killer.until_blocked(0)
}
