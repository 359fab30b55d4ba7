//! Histograms of times. The counts only rise, so a monitor gets those of a period as the difference
//! of two readings.

use std::iter;

/// The greatest time of each bucket in ms, except of the last, which has no bound.
pub const BOUNDS_MS: [u64; 16] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000,
];

const BUCKETS: usize = BOUNDS_MS.len() + 1;

/// A histogram of times in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    counts: [u64; BUCKETS],
    sum_ms: u64,
}

impl Buckets {
    /// Counts one time.
    pub fn record(&mut self, ms: u64) {
        let at = BOUNDS_MS.iter().take_while(|bound| **bound < ms).count();
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, others: &Self) {
        for (count, other) in self.counts.iter_mut().zip(&others.counts) {
            *count += other;
        }
        self.sum_ms = self.sum_ms.saturating_add(others.sum_ms);
    }

    /// Returns the number of times up to each bound. The last bound is `None` and includes all
    /// times.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = BOUNDS_MS.into_iter().map(Some).chain(iter::once(None));
        let mut up_to = 0;
        bounds.zip(&self.counts).map(move |(bound, count)| {
            up_to += count;
            (bound, up_to)
        })
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all times in ms, at most `u64::MAX`.
    pub const fn sum_ms(&self) -> u64 {
        self.sum_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_all_times_up_to_its_bound() {
        let mut buckets = Buckets::default();
        let times = [0, 1, 2, 3, 30_000, 30_001, 300_000, 300_001, 7_000_000];
        times.into_iter().for_each(|ms| buckets.record(ms));
        for (bound, count) in buckets.cumulative() {
            let within = |ms: &&u64| bound.is_none_or(|bound| **ms <= bound);
            assert_eq!(
                count,
                times.iter().filter(within).count() as u64,
                "{bound:?}"
            );
        }
        assert_eq!(buckets.cumulative().count(), BUCKETS);
        assert_eq!(buckets.cumulative().last(), Some((None, 9)));
        assert_eq!((buckets.count(), buckets.sum_ms()), (9, times.iter().sum()));
    }

    #[test]
    fn times_of_two_add_up() {
        let (mut one, mut other, mut both) =
            (Buckets::default(), Buckets::default(), Buckets::default());
        for ms in [5, 6, 1_000] {
            one.record(ms);
            other.record(ms * 60);
            both.record(ms);
            both.record(ms * 60);
        }
        one.add(&other);
        assert_eq!(one, both);
    }

    #[test]
    fn the_longest_times_count_too() {
        let mut buckets = Buckets::default();
        buckets.record(u64::MAX);
        buckets.record(u64::MAX);
        assert_eq!((buckets.count(), buckets.sum_ms()), (2, u64::MAX));
    }
}
