//! Many locks that end in the same second: the latency of PING meanwhile, and the time until the
//! last lock has left the memory.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::{Connection, Pinger, Server};

use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{token, Stage};

/// The benchmark's name.
pub const NAME: &str = "mass-end";

/// The commands of the server module under test.
pub const LOCK: &str = "LOCK.ACQUIRE key token PX";
/// The same token in a string.
pub const SET: &str = "SET key token PX";

/// The time span in which all locks end.
const SPAN: Duration = Duration::from_secs(1);

/// The longest time that ended locks may stay in memory.
const PATIENCE: Duration = Duration::from_secs(120);

struct Size {
    locks: u64,
    rounds: usize,
    /// The time to send all locks before the first lock ends.
    head_start: Duration,
}

/// Measures locks and plain strings.
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
    ensure!(!early.is_zero(), "the locks ended before all were sent");
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

/// Returns the moment in `SPAN` when a lock ends, in an order that the server can't predict.
fn spread(number: u64, count: u64) -> Duration {
    // Every moment is used once, because the step is coprime to each count: the counts have no
    // prime factors except 2 and 5.
    let shuffled = number * 7_919 % count;
    Duration::from_nanos(SPAN.as_nanos() as u64 / count * shuffled)
}

/// Waits until the last key is gone, and returns the time since `end`.
fn until_gone(asker: &mut Connection, end: Instant) -> Result<Duration> {
    while asker.count("DBSIZE")? > 0 {
        ensure!(end.elapsed() < PATIENCE, "they never leave the memory");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Instant::now().saturating_duration_since(end))
}
