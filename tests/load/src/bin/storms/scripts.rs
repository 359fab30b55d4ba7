//! A script that takes SESSION locks, beside thousands of clients.

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::Crowd;

use crate::report::Score;
use crate::stage::{Stage, LONG};

const CLIENTS: usize = 5_000;

const LOCKS: usize = 20;

const BOUND_MS: f64 = 20.0;

/// The bound for Redis 7.0, which doesn't report a script's caller, so all clients are listed once.
const LISTED_BOUND_MS: f64 = 60.0;

/// Scores the processor time of one script with 20 locks, each tied to the script's caller.
pub fn sessions(stage: &Stage, score: &mut Score) -> Result<()> {
    let clients = stage.scaled(CLIENTS);
    let server = stage.start()?;
    let _crowd = Crowd::connect(server.port(), clients)?;
    let (mut caller, mut asker) = (server.connect()?, server.connect()?);
    let script = format!(
        "local granted = 0
        for index = 1, {LOCKS} do
            local lock = {{'LOCK.ACQUIRE', KEYS[1] .. index, 't', '{}', 'SESSION'}}
            if redis.call(unpack(lock)) then granted = granted + 1 end
        end
        return granted",
        LONG.replace(' ', "', '")
    );
    let before = asker.server_cpu()?;
    let granted = caller.call_words(&[b"EVAL", script.as_bytes(), b"1", b"k"])?;
    let took = asker.server_cpu()? - before;
    ensure!(granted == Value::Int(LOCKS as i64), "granted: {granted:?}");
    let is_listed = stage.server_name()?.starts_with("Redis 7.0");
    score.at_most(
        &format!("{LOCKS} SESSION locks in a script, {clients} clients"),
        took.as_secs_f64() * 1e3,
        if is_listed { LISTED_BOUND_MS } else { BOUND_MS },
        "ms of the server",
    );
    Ok(())
}
