//! How long things took: quantiles of all that was recorded, in a table of fixed size.

use hdrhistogram::Histogram;

use crate::values::moment::MAX_SPAN_MS;

/// Digits of a time that are kept: it is told to within 1 %.
const DIGITS: u8 = 2;

/// Times in ms. What is longer than any lease may be counts as that.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// There from the first one on: some 25 KB.
    recorded: Option<Box<Histogram<u64>>>,
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
        match &mut self.recorded {
            Some(recorded) => recorded.saturating_record(ms),
            None => self.record_first(ms),
        }
    }

    #[cold]
    fn record_first(&mut self, ms: u64) {
        let table = Histogram::new_with_max(MAX_SPAN_MS, DIGITS);
        // The bounds are constants that it takes, as the tests show.
        self.recorded = table.ok().map(|mut table| {
            table.saturating_record(ms);
            Box::new(table)
        });
    }

    /// What is told of them.
    pub fn summary(&self) -> Summary {
        let Some(recorded) = &self.recorded else {
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
