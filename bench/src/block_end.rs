//! The delay between the end of a client's BLOCK and its nil reply.
//!
//! BLOCK counts from the moment when the client sent its command. A reply can also be early: a
//! server may count from the time when it began to read a batch of commands. The benchmark records
//! both.
//!
//! The server reads each command before the next one is sent. Otherwise the lateness of the last
//! command would include the time to read all commands before it.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::{packed, Connection, PATIENCE};

use crate::clients::Clients;
use crate::lateness::{Times, MILLISECOND};
use crate::reply::Reply;
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{token, Stage};

/// The benchmark's name.
pub const NAME: &str = "block-end";

/// The commands of the server module under test.
pub const LOCK: &str = "LOCK.WAIT BLOCK";
/// The server's own timeouts.
pub const LIST: &str = "BLPOP timeout";

/// The number of waiters in a full run.
pub const FULL: u64 = 500;

/// The shortest BLOCK.
const SHORTEST: u64 = 100;

/// The difference between one BLOCK and the next, in ms.
const STEP: u64 = 3;

/// The limit of earliness. A wait that ends this early is a defect.
const TOO_EARLY: Duration = Duration::from_millis(50);

/// Measures LOCK.WAIT and BLPOP.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let (waiters, rounds) = stage.extent().of((50, 2), (FULL, 5));
    let server = stage.start(&[])?;
    let mut clients = Clients::connect(server.port(), waiters as usize)?;
    let mut holder = server.connect()?;
    holder.granted(&format!("LOCK.ACQUIRE lock {} PX 3600000", token(0)))?;
    let name = |who: &&str| format!("{NAME}: {who}");
    interleaved(rounds, &mut [LOCK, LIST], progress, name, |_, who| {
        let (times, early) = round_of(who, &mut holder, &mut clients)?;
        let place = Place::new(NAME, "", waiters, who);
        let metrics = [metric::LATE_P50, metric::LATE_P99, metric::LATE_MAX];
        times.note(sheet, &place, metrics, MILLISECOND)?;
        sheet.note(&place, metric::EARLY_MAX, early.as_secs_f64() * 1e3)?;
        holder.until_blocked(0)
    })
}

fn command(who: &str, number: usize, block: u64) -> String {
    if who == LOCK {
        return format!("LOCK.WAIT lock {} BLOCK {block}", token(number + 1));
    }
    format!("BLPOP list {}.{:03}", block / 1_000, block % 1_000)
}

fn round_of(who: &str, other: &mut Connection, clients: &mut Clients) -> Result<(Times, Duration)> {
    let mut due = Vec::new();
    for index in 0..clients.len() {
        let block = SHORTEST + STEP * index as u64;
        let command = packed(&command(who, index, block));
        due.push(Instant::now() + Duration::from_millis(block));
        clients.send(index, &command)?;
        other.call("PING")?;
    }
    let mut times = Times::new()?;
    let mut early = Duration::ZERO;
    let mut ended = 0;
    let mut replies = Vec::new();
    while ended < due.len() {
        clients.receive(PATIENCE, &mut replies)?;
        ensure!(!replies.is_empty(), "{ended} were answered");
        let now = Instant::now();
        for (index, reply) in replies.drain(..) {
            ensure!(reply == Reply::Nil, "client {index} was answered {reply:?}");
            times.record(now.saturating_duration_since(due[index]))?;
            early = early.max(due[index].saturating_duration_since(now));
            ended += 1;
        }
    }
    ensure!(early < TOO_EARLY, "a wait ended {early:?} too early");
    Ok((times, early))
}
