//! Durations of waits and holds: quantiles and histograms of all recorded times, in fixed memory.

use hdrhistogram::Histogram;

use crate::hints::unlikely;
use crate::state::buckets::Buckets;
use crate::values::time::MAX_SPAN_MS;

/// The significant digits of a time in the table: quantiles are exact to within 1 %.
const DIGITS: u8 = 2;

/// The number of times after which the buffered times are added to the table.
// perf: buffered, because otherwise every release would execute the table's code.
const MOST_RECENT: usize = 64;

/// Times in ms. In the quantiles, a time beyond [`MAX_SPAN_MS`] counts as [`MAX_SPAN_MS`].
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// The quantile table, some 25 KB. Allocated when the first times are added.
    table: Option<Box<Histogram<u64>>>,
    /// The same times as a histogram.
    buckets: Buckets,
    /// Times that are not in the table and the buckets yet, fewer than [`MOST_RECENT`].
    recent: Vec<u64>,
}

/// Quantiles of the recorded times, in ms; 0 if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The median.
    pub p50_ms: u64,
    /// The 99th percentile.
    pub p99_ms: u64,
    /// The longest time.
    pub max_ms: u64,
}

impl Durations {
    /// Records one time.
    #[inline]
    pub fn record(&mut self, ms: u64) {
        self.recent.push(ms);
        if unlikely(self.recent.len() == MOST_RECENT) {
            self.add_recent();
        }
    }

    #[inline(never)]
    fn add_recent(&mut self) {
        if self.table.is_none() && !self.recent.is_empty() {
            // The constructor accepts these constants, as the tests show.
            let table = Histogram::new_with_max(MAX_SPAN_MS, DIGITS);
            self.table = table.ok().map(Box::new);
        }
        for ms in self.recent.drain(..) {
            self.buckets.record(ms);
            if let Some(table) = &mut self.table {
                table.saturating_record(ms);
            }
        }
    }

    /// Returns the histogram of the recorded times.
    pub fn buckets(&mut self) -> Buckets {
        self.add_recent();
        self.buckets
    }

    /// Returns the quantiles of the recorded times.
    pub fn summary(&mut self) -> Summary {
        self.add_recent();
        let Some(recorded) = &self.table else {
            return Summary::default();
        };
        let max_ms = recorded.max();
        let at = |quantile| recorded.value_at_quantile(quantile).min(max_ms);
        Summary {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Durations::default().summary(), Summary::default());
    }

    #[test]
    fn times_are_shown_to_within_one_percent() {
        for unit_ms in [1, 7, 1_000, 86_400_000] {
            let mut durations = Durations::default();
            (1..=1_000).for_each(|count| durations.record(count * unit_ms));
            let Summary {
                p50_ms,
                p99_ms,
                max_ms,
            } = durations.summary();
            for (shown, exact) in [
                (p50_ms, 500 * unit_ms),
                (p99_ms, 990 * unit_ms),
                (max_ms, 1_000 * unit_ms),
            ] {
                assert!(
                    shown >= exact && shown <= exact + exact / 100,
                    "{shown}: {exact}"
                );
            }
        }
    }

    #[test]
    fn the_shortest_and_the_longest_fit() {
        let mut durations = Durations::default();
        for ms in [0, MAX_SPAN_MS, u64::MAX] {
            durations.record(ms);
        }
        assert_eq!(durations.buckets().count(), 3);
        let Summary { p50_ms, max_ms, .. } = durations.summary();
        assert!(
            p50_ms.abs_diff(MAX_SPAN_MS) <= MAX_SPAN_MS / 100,
            "{p50_ms}"
        );
        assert!(
            max_ms.abs_diff(MAX_SPAN_MS) <= MAX_SPAN_MS / 100,
            "{max_ms}"
        );
    }
}
