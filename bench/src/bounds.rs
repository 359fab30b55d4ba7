//! The bounds that a full run must meet. This file defines all bounds.
//!
//! Each bound is a time or a ratio within one run, so it doesn't depend on the machine's speed.

use std::process::ExitCode;

use crate::sheet::{metric, shown, Extent, Place, Run};
use crate::{block_end, contended, instructions, lease_end, memory, pair, pairs, replicas};

/// The limit of CI for `make instructions` on each server: the instructions of a pair, as a
/// multiple of SET + DEL's.
///
/// The `HELD_OF` limits are the highest values of any server at version 0.1.0, plus 3 %. Lower them
/// after every gain, down to the bounds below.
/// On Redis 7.0 the ratio was 1.23 to 1.30 by the same code, because the server's own share varies.
pub const HELD_OF_DELETE: f64 = 1.34;
/// Like `HELD_OF_DELETE`, for compare-and-delete on the servers that support it.
pub const HELD_OF_COMPARE: f64 = 1.15;
/// Like `HELD_OF_DELETE`, for the script.
pub const HELD_OF_SCRIPT: f64 = 0.64;
/// The limit of CI for misses of the instruction cache per pair, as a multiple of the script's.
///
/// On Redis 7.0 the ratio was 1.22 before the cold paths were moved out of line, and 0.89 since. On
/// Valkey 8.1 it is 1.05, depending on where the linker places the code.
pub const HELD_MISSES_OF_SCRIPT: f64 = 1.1;

/// The limits of CI for the instructions of a hand-over, as a multiple of LPUSH + BLPOP's. Each has
/// its number of contenders. A limit is the highest value of any server and machine, plus 3 %, rounded up.
///
/// The ratio depends on the hand-overs that share a pass of the server's event loop. On Redis 7.0 it
/// was 1.38 to 1.45 with 16 contenders, and 1.06 to 1.40 with 1,000, by the same code. It is 1.37 and
/// 1.13 since a hand-over moves and asks less.
pub const HELD_HAND_OVERS: [(u64, f64); 2] = [(16, 1.45), (1_000, 1.45)];

/// Returns the bounds that CI enforces.
pub fn held() -> Vec<Bound> {
    let held = [
        (pairs::DELETE, HELD_OF_DELETE),
        (pairs::COMPARE, HELD_OF_COMPARE),
        (pairs::SCRIPT, HELD_OF_SCRIPT),
    ];
    let held = held.map(|(way, limit)| instructions_of(way, Limit::AtMost(limit)));
    let misses = Limit::AtMost(HELD_MISSES_OF_SCRIPT);
    let misses = counted_of(metric::FETCHES, pairs::SCRIPT, misses);
    let hand_overs = HELD_HAND_OVERS.map(hand_over_of_list);
    let held = held.into_iter().chain([misses]);
    held.chain(hand_overs).collect()
}

/// Returns the bounds that a full run must meet.
pub fn all(run: &Run) -> Vec<Bound> {
    let (lock_bytes, of_a_lock) = if run.server.starts_with("Valkey 9.1") {
        (1.6, "bytes a lock on Valkey 9.1, of SET PX's")
    } else {
        (1.3, "bytes a lock, of SET PX's")
    };
    let mut all = vec![
        instructions_of(pairs::DELETE, Limit::AtMost(1.3)),
        instructions_of(pairs::COMPARE, Limit::AtMost(1.15)),
        instructions_of(pairs::SCRIPT, Limit::AtMost(0.6)),
        Bound {
            what: "server CPU a pair, of SET + DEL's".to_owned(),
            measured: at(pair::NAME, pair::AOF_OFF, 64, pairs::LOCK, metric::CPU_PAIR),
            of: Some(at(
                pair::NAME,
                pair::AOF_OFF,
                64,
                pairs::DELETE,
                metric::CPU_PAIR,
            )),
            limit: Limit::AtMost(1.3),
        },
    ];
    all.extend([16, 100, 1_000, 5_000].map(grants_of_list));
    all.extend([
        Bound {
            what: "server CPU a grant with 5,000 contenders, of that with 16".to_owned(),
            measured: contended_at(5_000, contended::LOCK, metric::CPU_GRANT),
            of: Some(contended_at(16, contended::LOCK, metric::CPU_GRANT)),
            limit: Limit::AtMost(1.2),
        },
        Bound {
            what: of_a_lock.to_owned(),
            measured: at(memory::NAME, "", memory::FULL, memory::LOCK, metric::BYTES),
            of: Some(at(
                memory::NAME,
                "",
                memory::FULL,
                memory::SET,
                metric::BYTES,
            )),
            limit: Limit::AtMost(lock_bytes),
        },
        Bound {
            what: "wake-up at a lease's end beside 1,000,000 volatile keys, p99, ms".to_owned(),
            measured: at(
                lease_end::NAME,
                "",
                1_000_000,
                lease_end::LOCK,
                metric::LATE_P99,
            ),
            of: None,
            limit: Limit::AtMost(5.0),
        },
        Bound {
            what: "end of BLOCK, p99, ms".to_owned(),
            measured: at(
                block_end::NAME,
                "",
                block_end::FULL,
                block_end::LOCK,
                metric::LATE_P99,
            ),
            of: None,
            limit: Limit::AtMost(3.0),
        },
    ]);
    all.extend([metric::TIME_P50, metric::TIME_P99].map(acknowledgement_of_wait));
    all
}

/// The limit of a number.
#[derive(Clone, Copy, PartialEq)]
pub enum Limit {
    /// An upper limit.
    AtMost(f64),
    /// A lower limit.
    AtLeast(f64),
}

impl Limit {
    /// Returns true if a number is within the limit.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtMost(limit) => value <= limit,
            Limit::AtLeast(limit) => value >= limit,
        }
    }

    /// Returns the limit as a sign and a number.
    pub fn shown(self) -> String {
        match self {
            Limit::AtMost(limit) => format!("≤ {limit}"),
            Limit::AtLeast(limit) => format!("≥ {limit}"),
        }
    }
}

/// A metric in a place.
pub struct Spot {
    place: Place,
    metric: &'static str,
}

/// One bound.
pub struct Bound {
    /// The description.
    pub what: String,
    measured: Spot,
    /// The divisor, if the bound is a ratio.
    of: Option<Spot>,
    /// The limit of the value.
    pub limit: Limit,
}

impl Bound {
    /// Returns the value of a run, or `None` if the run has not measured it. A quick run has values
    /// for instruction counts only.
    pub fn value(&self, run: &Run) -> Option<f64> {
        let median = |spot: &Spot| run.sheet.median(&spot.place, spot.metric);
        let benchmark = self.measured.place.benchmark.as_str();
        let counted = [instructions::NAME, instructions::HAND_OVER].contains(&benchmark);
        if run.extent == Extent::Quick && !counted {
            return None;
        }
        let of = match &self.of {
            Some(spot) => median(spot)?,
            None => 1.0,
        };
        Some(median(&self.measured)? / of)
    }
}

fn at(benchmark: &str, setting: &str, size: u64, contestant: &str, metric: &'static str) -> Spot {
    let place = Place::new(benchmark, setting, size, contestant);
    Spot { place, metric }
}

fn contended_at(n: u64, contestant: &str, metric: &'static str) -> Spot {
    at(contended::NAME, "", n, contestant, metric)
}

fn acknowledgement_of_wait(metric: &'static str) -> Bound {
    let time = |contestant| at(replicas::NAME, "", 0, contestant, metric);
    Bound {
        what: format!("a grant that a replica has, {metric}, of LOCK.ACQUIRE and WAIT 1\'s"),
        measured: time(replicas::REPLICAS),
        of: Some(time(replicas::WAIT)),
        limit: Limit::AtMost(replicas::BOUND),
    }
}

fn grants_of_list(n: u64) -> Bound {
    let grants = |contestant| contended_at(n, contestant, metric::GRANTS_PER_SECOND);
    Bound {
        what: format!(
            "grants/s of {} contenders, of LPUSH/BLPOP\'s",
            shown(n as f64)
        ),
        measured: grants(contended::LOCK),
        of: Some(grants(contended::LIST)),
        limit: Limit::AtLeast(0.95),
    }
}

fn hand_over_of_list((n, limit): (u64, f64)) -> Bound {
    let count = |way| {
        let name = instructions::HAND_OVER;
        at(name, "", n, way, metric::INSTRUCTIONS_GRANT)
    };
    Bound {
        what: format!(
            "instructions a hand-over of {} contenders, of LPUSH/BLPOP\'s",
            shown(n as f64)
        ),
        measured: count(contended::LOCK),
        of: Some(count(contended::LIST)),
        limit: Limit::AtMost(limit),
    }
}

fn instructions_of(way: &str, limit: Limit) -> Bound {
    counted_of(metric::INSTRUCTIONS, way, limit)
}

/// Returns the bound of a pair's counter, relative to another way.
fn counted_of(metric: &'static str, way: &str, limit: Limit) -> Bound {
    let count = |way| {
        let pipeline = instructions::PIPELINE as u64;
        at(instructions::NAME, "", pipeline, way, metric)
    };
    Bound {
        what: format!("{metric}, of {way}\'s"),
        measured: count(pairs::LOCK),
        of: Some(count(way)),
        limit,
    }
}

/// The numbers of passed and failed benchmarks and bounds.
#[derive(Default)]
pub struct Tally {
    /// The benchmarks that were measured and the bounds that hold.
    pub passed: usize,
    /// The benchmarks that stopped with an error and the bounds that don't hold.
    pub failed: usize,
}

impl Tally {
    /// Counts the bounds for which the run has a value.
    pub fn judge(&mut self, run: &Run, bounds: &[Bound]) {
        for bound in bounds {
            match bound.value(run) {
                Some(value) if bound.limit.holds(value) => self.passed += 1,
                Some(_) => self.failed += 1,
                None => {}
            }
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Prints the tally, and returns the exit code.
    pub fn told(&self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        ExitCode::from(u8::from(self.failed > 0))
    }
}
