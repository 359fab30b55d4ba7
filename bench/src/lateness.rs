//! The times of many events of one round, reported by their median, p99 and maximum.

use std::time::Duration;

use anyhow::{ensure, Result};
use hdrhistogram::Histogram;

use crate::sheet::{Place, Sheet};

/// Times with a precision of 0.1 %.
pub struct Times {
    nanoseconds: Histogram<u64>,
}

impl Times {
    /// Returns an empty set of times.
    pub fn new() -> Result<Times> {
        let nanoseconds = Histogram::new(3)?;
        Ok(Times { nanoseconds })
    }

    /// Adds a time.
    pub fn record(&mut self, time: Duration) -> Result<()> {
        Ok(self.nanoseconds.record(time.as_nanos() as u64)?)
    }

    /// Removes all times.
    pub fn clear(&mut self) {
        self.nanoseconds.reset();
    }

    /// Notes the p50, p99 and maximum in `sheet`, in this order. `unit` is in nanoseconds.
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

/// Nanoseconds per millisecond.
pub const MILLISECOND: f64 = 1e6;

/// Nanoseconds per microsecond.
pub const MICROSECOND: f64 = 1e3;
