//! How long things took: quantiles and counts of all that was recorded, in tables of fixed size.

use hdrhistogram::Histogram;

use crate::branch::unlikely;
use crate::state::buckets::Buckets;
use crate::values::moment::MAX_SPAN_MS;

/// Digits of a time that are kept: it is told to within 1 %.
const DIGITS: u8 = 2;

/// So many are recorded before they go into the table, all at once: to find the place of each as it comes would have
/// every release run through that code.
const MOST_RECENT: usize = 64;

/// Times in ms. What is longer than any lease may be counts as that.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// There from the first ones on: some 25 KB.
    table: Option<Box<Histogram<u64>>>,
    /// The same times, counted by their length.
    buckets: Buckets,
    /// Those that aren't in the table and the buckets yet, [`MOST_RECENT`] at most.
    recent: Vec<u64>,
}

/// What is told of times, in ms; 0 where there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Half of them were at most this long.
    pub p50_ms: u64,
    /// 99 of 100 were at most this long.
    pub p99_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Durations {
    /// Records one.
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
            // The bounds are constants that it takes, as the tests show.
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

    /// Counts of them by their length.
    pub fn buckets(&mut self) -> Buckets {
        self.add_recent();
        self.buckets
    }

    /// What is told of them.
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
    fn times_are_told_to_within_one_percent() {
        for unit_ms in [1, 7, 1_000, 86_400_000] {
            let mut durations = Durations::default();
            (1..=1_000).for_each(|count| durations.record(count * unit_ms));
            let Summary {
                p50_ms,
                p99_ms,
                max_ms,
            } = durations.summary();
            for (told, exact) in [
                (p50_ms, 500 * unit_ms),
                (p99_ms, 990 * unit_ms),
                (max_ms, 1_000 * unit_ms),
            ] {
                assert!(
                    told >= exact && told <= exact + exact / 100,
                    "{told}: {exact}"
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
