//! The growth of the server's `used_memory` per lock and per waiting client, in bytes.
//!
//! Each measurement has a new server, so nothing is left from an earlier measurement. Keys and
//! tokens have the same length for all contestants. The memory is read when the server is idle and
//! its memory no longer changes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::{packed, Connection, Server, PATIENCE};

use crate::clients::Clients;
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{token, Stage};

/// The benchmark's name.
pub const NAME: &str = "memory";

/// A lock.
pub const LOCK: &str = "LOCK.ACQUIRE key token PX";
/// A lock that is tied to a connection.
pub const SESSION: &str = "LOCK.ACQUIRE key token PX SESSION";
/// The same token in a string.
pub const SET: &str = "SET key token PX";
/// A client that waits for a lock.
pub const WAITER: &str = "waiter in LOCK.WAIT";
/// A client that waits for a list.
pub const LIST: &str = "waiter in BLPOP";

/// The number of locks in a full run.
pub const FULL: u64 = 100_000;

/// The time after which the server has shrunk the reply buffers of idle connections.
///
/// A new connection has a reply buffer of 16 KB. The server shrinks the buffer at its next visit
/// after 5 seconds with little use. A waiter is measured without the large buffer.
const REPLY_BUFFER_SHRINKS: Duration = Duration::from_secs(8);

/// Measures all contestants.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let (locks, waiters, rounds) = stage.extent().of((5_000, 100, 1), (FULL, 1_000, 3));
    let mut all = [LOCK, SESSION, SET, WAITER, LIST];
    let name = |who: &&str| format!("{NAME}: {who}");
    interleaved(rounds, &mut all, progress, name, |_, who| {
        let server = stage.start(&[])?;
        match *who {
            WAITER => of_waiters("LOCK.WAIT lock", waiters, who, &server, sheet),
            LIST => of_waiters("BLPOP lock", waiters, who, &server, sheet),
            _ => of_locks(locks, who, &server, sheet),
        }
    })
}

fn command(who: &str, number: u64) -> String {
    let (key, token) = (key(number), token(number as usize));
    match who {
        SET => format!("SET {key} {token} PX 3600000"),
        SESSION => format!("LOCK.ACQUIRE {key} {token} PX 3600000 SESSION"),
        _ => format!("LOCK.ACQUIRE {key} {token} PX 3600000"),
    }
}

fn key(number: u64) -> String {
    format!("lock:{number:06}")
}

fn of_locks(count: u64, who: &str, server: &Server, sheet: &mut Sheet) -> Result<()> {
    let mut holder = server.connect()?;
    let mut asker = server.connect()?;
    // The connections allocate their buffers before the first measurement.
    holder.pipeline((0..2_000).map(|_| "PING".to_owned()), |_| Ok(()))?;
    let before = settled(&mut asker)?;
    holder.pipeline_granted((0..count).map(|number| command(who, number)))?;
    let after = settled(&mut asker)?;
    let place = Place::new(NAME, "", count, who);
    sheet.note_some(&place, metric::BYTES, (after - before) / count as f64)?;
    let usage = asker.count(&format!("MEMORY USAGE {}", key(count / 2)))?;
    sheet.note_some(&place, metric::MEMORY_USAGE, usage as f64)
}

fn of_waiters(
    asks: &str,
    count: usize,
    who: &str,
    server: &Server,
    sheet: &mut Sheet,
) -> Result<()> {
    let mut clients = Clients::connect(server.port(), count)?;
    let mut asker = server.connect()?;
    asker.granted(&format!("LOCK.ACQUIRE lock:0 {} PX 3600000", token(count)))?;
    thread::sleep(REPLY_BUFFER_SHRINKS);
    let before = settled(&mut asker)?;
    for index in 0..count {
        let command = match who {
            WAITER => format!("{asks}:0 {}", token(index)),
            _ => format!("{asks}:1 0"),
        };
        clients.send(index, &packed(&command))?;
    }
    asker.until_blocked(count)?;
    thread::sleep(REPLY_BUFFER_SHRINKS);
    let after = settled(&mut asker)?;
    let place = Place::new(NAME, "", count as u64, who);
    sheet.note_some(&place, metric::BYTES, (after - before) / count as f64)
}

/// Returns the memory in use once it is stable: tables have grown and buffers have shrunk.
fn settled(asker: &mut Connection) -> Result<f64> {
    // Ten times a second, the server visits a tenth of its clients and goes on to resize its
    // tables.
    let pause = Duration::from_millis(250);
    let deadline = Instant::now() + PATIENCE;
    let mut last = 0;
    loop {
        thread::sleep(pause);
        let used: i64 = asker.info("memory", "used_memory")?.parse()?;
        if (used - last).abs() < 4_096 {
            return Ok(used as f64);
        }
        last = used;
        ensure!(Instant::now() < deadline, "used_memory never settles");
    }
}
