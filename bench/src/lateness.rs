//! Times of many events of one round, told by their middle, their hundredth worst and their worst.

use std::time::Duration;

use anyhow::{ensure, Result};
use hdrhistogram::Histogram;

use crate::sheet::{Place, Sheet};

/// Times, kept to 0.1 %.
pub struct Times {
    nanoseconds: Histogram<u64>,
}

impl Times {
    /// None yet.
    pub fn new() -> Result<Times> {
        let nanoseconds = Histogram::new(3)?;
        Ok(Times { nanoseconds })
    }

    /// Adds one.
    pub fn record(&mut self, time: Duration) -> Result<()> {
        Ok(self.nanoseconds.record(time.as_nanos() as u64)?)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.nanoseconds.reset();
    }

    /// Notes them in a unit of so many nanoseconds: p50, p99 and the longest, in that order.
    pub fn note(
        &self,
        sheet: &mut Sheet,
        place: &Place,
        metrics: [&str; 3],
        unit: f64,
    ) -> Result<()> {
        ensure!(!self.nanoseconds.is_empty(), "nothing happened: {place:?}");
        let times = &self.nanoseconds;
        let values = [
            times.value_at_percentile(50.0),
            times.value_at_percentile(99.0),
            times.max(),
        ];
        for (metric, value) in metrics.into_iter().zip(values) {
            sheet.note(place, metric, value as f64 / unit)?;
        }
        Ok(())
    }
}

/// Nanoseconds of a millisecond.
pub const MILLISECOND: f64 = 1e6;

/// Nanoseconds of a microsecond.
pub const MICROSECOND: f64 = 1e3;
