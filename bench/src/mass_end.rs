//! Very many locks that end in the same second: how long a PING takes meanwhile, and when the last
//! of them has left the memory.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::{Connection, Pinger, Server};

use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{token, Stage};

/// The benchmark's name.
pub const NAME: &str = "mass-end";

/// This module.
pub const LOCK: &str = "LOCK.ACQUIRE key token PX";
/// The same token in a string.
pub const SET: &str = "SET key token PX";

/// The second in which all end.
const SPAN: Duration = Duration::from_secs(1);

/// How long they may stay in memory.
const PATIENCE: Duration = Duration::from_secs(120);

struct Size {
    locks: u64,
    rounds: usize,
    /// How long it may take to send all of them.
    head_start: Duration,
}

/// Measures both.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let size = stage.extent().of(
        Size {
            locks: 20_000,
            rounds: 1,
            head_start: Duration::from_millis(2_000),
        },
        Size {
            locks: 1_000_000,
            rounds: 3,
            head_start: Duration::from_secs(20),
        },
    );
    let server = stage.start(&[])?;
    let name = |who: &&str| format!("{NAME}: {who}");
    interleaved(size.rounds, &mut [LOCK, SET], progress, name, |_, who| {
        let place = Place::new(NAME, "", size.locks, who);
        round_of(who, &server, &size, sheet, &place)
    })
}

fn round_of(
    who: &str,
    server: &Server,
    size: &Size,
    sheet: &mut Sheet,
    place: &Place,
) -> Result<()> {
    let mut asker = server.connect()?;
    let first = Instant::now() + size.head_start;
    let commands = (0..size.locks).map(|number| {
        let end = first + spread(number, size.locks);
        let left = end.saturating_duration_since(Instant::now()).as_millis();
        let left = left.max(1);
        match who {
            LOCK => format!(
                "LOCK.ACQUIRE lock:{number} {} PX {left}",
                token(number as usize)
            ),
            _ => format!("SET lock:{number} {} PX {left}", token(number as usize)),
        }
    });
    asker.pipeline_granted(commands)?;
    let early = first.saturating_duration_since(Instant::now());
    ensure!(!early.is_zero(), "they ended before all were there");
    ensure!(
        asker.count("DBSIZE")? as u64 == size.locks,
        "not all are there"
    );
    thread::sleep(early);
    let pinger = Pinger::start(server.port())?;
    let gone = until_gone(&mut asker, first + SPAN);
    let latency = pinger.stop()?;
    sheet.note_some(place, metric::PING_P99, latency.percentile_ms(99.0))?;
    sheet.note_some(place, metric::PING_MAX, latency.max_ms())?;
    sheet.note(place, metric::RECLAIMED, gone?.as_secs_f64() * 1e3)
}

/// When in the second a lock ends: in no order that the server could know.
fn spread(number: u64, count: u64) -> Duration {
    // A step that is prime to any count which is a power of ten: every moment has its turn.
    let shuffled = number * 7_919 % count;
    Duration::from_nanos(SPAN.as_nanos() as u64 / count * shuffled)
}

/// How long after a moment the last key is gone.
fn until_gone(asker: &mut Connection, end: Instant) -> Result<Duration> {
    while asker.count("DBSIZE")? > 0 {
        ensure!(end.elapsed() < PATIENCE, "they never leave the memory");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Instant::now().saturating_duration_since(end))
}
