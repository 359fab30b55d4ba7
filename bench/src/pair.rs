//! The pairs of an acquire and a release of an uncontended lock: pairs per second over one
//! connection, and the server's processor time per pair.

use std::time::Instant;

use anyhow::Result;
use redis_lock_load::Connection;

use crate::pairs::{self, Pairs};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::Stage;
use crate::wire::Wire;

/// The benchmark's name.
pub const NAME: &str = "pair";

/// The setting without an append-only file.
pub const AOF_OFF: &str = "AOF off";

/// The settings, each with its configuration lines.
const SETTINGS: [(&str, &[&str]); 2] = [
    (AOF_OFF, &[]),
    ("AOF everysec", &["appendonly yes", "appendfsync everysec"]),
];

/// The numbers of commands that are sent before their replies are read.
const PIPELINES: [usize; 3] = [1, 16, 64];

struct Size {
    keys: usize,
    /// The pairs of a round in which each command waits for the reply to the previous command.
    one_by_one: usize,
    rounds: usize,
}

/// Measures all ways on a server with each setting.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let size = stage.extent().of(
        Size {
            keys: 5_000,
            one_by_one: 1_000,
            rounds: 3,
        },
        Size {
            keys: 100_000,
            one_by_one: 20_000,
            rounds: 9,
        },
    );
    for (setting, lines) in SETTINGS {
        let server = stage.start(lines)?;
        let mut asker = server.connect()?;
        let mut wire = Wire::open(server.port())?;
        let mut all = pairs::all(&mut asker, size.keys)?;
        for way in &all {
            way.play(&mut wire, (0, way.len().min(2_000)), 64)?;
        }
        for pipeline in PIPELINES {
            let name = |way: &Pairs| format!("{NAME}, {setting}, {pipeline}: {}", way.name);
            interleaved(size.rounds, &mut all, progress, name, |round, way| {
                let part = part(round, pipeline, &size);
                let place = Place::new(NAME, setting, pipeline as u64, way.name);
                round_of(way, part, pipeline, &mut wire, &mut asker, sheet, &place)
            })?;
        }
    }
    Ok(())
}

/// Returns the range of keys of a round: all keys, or the next part if commands aren't pipelined.
fn part(round: usize, pipeline: usize, size: &Size) -> (usize, usize) {
    if pipeline > 1 {
        return (0, size.keys);
    }
    let from = round * size.one_by_one % size.keys;
    (from, from + size.one_by_one)
}

fn round_of(
    way: &Pairs,
    part: (usize, usize),
    pipeline: usize,
    wire: &mut Wire,
    asker: &mut Connection,
    sheet: &mut Sheet,
    place: &Place,
) -> Result<()> {
    let count = (part.1 - part.0) as f64;
    let cpu = asker.server_cpu()?;
    let begin = Instant::now();
    way.play(wire, part, pipeline)?;
    let took = begin.elapsed();
    let cpu = asker.server_cpu()?.saturating_sub(cpu);
    sheet.note_some(place, metric::PAIRS_PER_SECOND, count / took.as_secs_f64())?;
    sheet.note_some(place, metric::CPU_PAIR, cpu.as_secs_f64() * 1e6 / count)
}
