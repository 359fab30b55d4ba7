//! Tokens that leave, and waits that KEEP keeps beyond their BLOCK.

use anyhow::{ensure, Result};
use redis_lock_load::{until, Crowd, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

/// Marks, or tokens that have left one key each.
const MARKS: usize = 100_000;
const MARKS_OF_A_COMMAND: usize = 1_000;

/// The most bytes that a mark may take.
const MARK_BOUND_BYTES: f64 = 100.0;

const WAITERS: usize = 10_000;

/// Bound of a PING's latency beside marks, in ms.
const MARKS_BOUND_MS: f64 = 20.0;

/// Bound of a PING's latency while the BLOCKs of all waiters end at once, in ms.
const BLOCKS_BOUND_MS: f64 = 100.0;

/// Marks many tokens, by commands of many keys. All marks end at once, and a sweep removes them.
pub fn marks(stage: &Stage, score: &mut Score) -> Result<()> {
    let marks = stage.scaled(MARKS);
    let server = stage.start()?;
    let mut client = server.connect()?;
    let bytes = |client: &mut redis_lock_load::Connection| -> Result<f64> {
        Ok(client.info("lock", "lock_bytes")?.parse()?)
    };
    let before = bytes(&mut client)?;
    let keys = on_keys("MRELEASE", MARKS_OF_A_COMMAND);
    let latency = beside_ping(&server, || {
        for token in 0..marks / MARKS_OF_A_COMMAND {
            client.count(&format!("{keys} t{token} LEAVE 3000"))?;
        }
        Ok(())
    })?;
    score.bounded_latency(&format!("{marks} marks: made"), &latency, MARKS_BOUND_MS);
    let left = client.info("lock", "lock_left")?;
    ensure!(left == marks.to_string(), "{left} marks instead of {marks}");
    let each = (bytes(&mut client)? - before) / marks as f64;
    let what = format!("{marks} marks: memory");
    score.at_most(&what, each, MARK_BOUND_BYTES, "bytes each");
    let latency = beside_ping(&server, || {
        until("no mark left", PATIENCE, || {
            Ok(client.info("lock", "lock_left")? == "0")
        })
    })?;
    score.bounded_latency(&format!("{marks} marks: swept"), &latency, MARKS_BOUND_MS);
    Ok(())
}

/// Ends the BLOCKs of many waiters of one key at once. Each waiter stays as a place and comes back.
pub fn blocks(stage: &Stage, score: &mut Score) -> Result<()> {
    let waiters = stage.scaled(WAITERS);
    let server = stage.start()?;
    let mut holder = server.connect()?;
    holder.granted(&format!("LOCK.ACQUIRE k h {LONG}"))?;
    let mut crowd = Crowd::connect(server.port(), waiters)?;
    let wait = |index: usize| format!("LOCK.WAIT k w{index} BLOCK 3000 KEEP 600000");
    crowd.send(wait)?;
    holder.until_blocked(waiters)?;
    let latency = beside_ping(&server, || holder.until_blocked(0))?;
    let what = format!("{waiters} waiters with KEEP");
    score.bounded_latency(&format!("{what}: BLOCK ends"), &latency, BLOCKS_BOUND_MS);
    let places = holder.info("lock", "lock_places")?;
    ensure!(places == waiters.to_string(), "{places} places");
    crowd.replies(|_| Ok(()))?;
    let latency = beside_ping(&server, || {
        crowd.send(wait)?;
        holder.until_blocked(waiters)
    })?;
    score.latency(&format!("{what}: wait again"), &latency);
    Ok(())
}
