//! What is measured each minute, and when it has grown.

use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use redis_lock_load::{Latency, Server};

/// Bytes of a mebibyte.
const MIB: f64 = 1_048_576.0;

/// A minute of the load.
pub struct Sample {
    /// Hours since the load began.
    pub hours: f64,
    /// The values, in the order of [`CURVES`].
    pub values: [f64; CURVES.len()],
}

/// A value that must not grow.
pub struct Curve {
    pub name: &'static str,
    pub unit: &'static str,
    /// By how much the median of the last quarter may be above that of the second one: a factor, and a
    /// number of units.
    slack: (f64, f64),
}

pub const CURVES: [Curve; 6] = [
    curve("memory of the process", "MiB", (1.05, 2.0)),
    curve("memory that the server counts", "MiB", (1.02, 0.2)),
    curve("descriptors", "", (1.0, 2.0)),
    curve("locks, waiters and marks of the module", "", (1.0, 100.0)),
    curve("PING, 50 %", "ms", (1.5, 0.2)),
    curve("PING, 99 %", "ms", (2.0, 5.0)),
];

/// Fields of `INFO lock` that count what is there now.
const COUNTS: [&str; 4] = ["lock_locks", "lock_waiters", "lock_places", "lock_left"];

impl Sample {
    /// Measures the server. Its clients are those of a moment between two acts.
    pub fn take(server: &Server, since: Duration, latency: &Latency) -> Result<Sample> {
        let mut asker = server.connect()?;
        let id = asker.info("server", "process_id")?;
        let pages = fs::read_to_string(format!("/proc/{id}/statm"))?;
        let resident = pages.split(' ').nth(1).context("resident pages")?;
        let used: f64 = asker.info("memory", "used_memory")?.parse()?;
        let descriptors = fs::read_dir(format!("/proc/{id}/fd"))?.count();
        let mut count = 0.0;
        for field in COUNTS {
            count += asker.info("lock", field)?.parse::<f64>()?;
        }
        Ok(Sample {
            hours: since.as_secs_f64() / 3600.0,
            values: [
                resident.parse::<f64>()? * page_size() / MIB,
                used / MIB,
                descriptors as f64,
                count,
                latency.percentile_ms(50.0),
                latency.percentile_ms(99.0),
            ],
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.2} h", self.hours)?;
        for (curve, value) in CURVES.iter().zip(self.values) {
            write!(out, ", {} {value:.2} {}", curve.name, curve.unit)?;
        }
        Ok(())
    }
}

impl Curve {
    /// Compares the last quarter with the second one. The first is the server's warming up. Returns a
    /// sentence if the value has grown.
    pub fn growth(&self, samples: &[Sample]) -> Option<String> {
        let at = CURVES.iter().position(|curve| curve.name == self.name)?;
        let quarter = samples.len() / 4;
        let early = median(samples.get(quarter..2 * quarter)?, at)?;
        let late = median(samples.get(3 * quarter..)?, at)?;
        let (factor, units) = self.slack;
        (late > early * factor + units).then(|| {
            let Curve { name, unit, .. } = self;
            format!("{name}: {early:.2} {unit} in the second quarter, {late:.2} {unit} in the last")
        })
    }
}

const fn curve(name: &'static str, unit: &'static str, slack: (f64, f64)) -> Curve {
    Curve { name, unit, slack }
}

fn median(samples: &[Sample], at: usize) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().map(|sample| sample.values[at]).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn page_size() -> f64 {
    // SAFETY: the call reads a constant of the system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl Iterator<Item = f64>) -> Vec<Sample> {
        let sample = |value| Sample {
            hours: 0.0,
            values: [value; CURVES.len()],
        };
        values.map(sample).collect()
    }

    #[test]
    fn a_value_that_grows_after_the_first_quarter_is_told() {
        let growing = samples((0..100).map(|minute| 100.0 * f64::from(minute)));
        let warming_up = samples((0..100).map(|minute| 100.0 * f64::from(minute.min(20))));
        for curve in CURVES {
            assert!(curve.growth(&growing).is_some(), "{}", curve.name);
            assert_eq!(curve.growth(&warming_up), None);
        }
    }
}
