//! Fencing tokens: numbers that rise with every grant of the whole server.
//!
//! `fence = max(last + 1, now in microseconds)`
//!
//! 1. The clock makes fences rise across a restart without persistence and across a failover.
//! 2. The counter makes fences rise when the clock stops or is set back.
//! 3. Every fence that arrives from elsewhere (replication, RDB, AOF, RESTORE) raises the counter.
//! 4. Microseconds since 1970 fit in 53 bits until the year 2255.

use std::sync::atomic::{AtomicU64, Ordering};

/// The most that a fence from RESTORE may be ahead of the clock: one day, in microseconds. Without
/// a bound, one forged payload would use up the numbers that clients can represent.
pub const MAX_AHEAD_US: u64 = 24 * 60 * 60 * 1_000_000;

/// The last fence that was given or seen. It is atomic because values are loaded outside any
/// operation.
#[derive(Debug, Default)]
pub struct Fences {
    last: AtomicU64,
}

impl Fences {
    /// Returns a counter that has seen no fence.
    pub const fn new() -> Self {
        Self {
            last: AtomicU64::new(0),
        }
    }

    /// Returns the next fence, which is greater than all fences before it.
    pub fn next(&self, wall_us: u64) -> u64 {
        let rise = |last: u64| wall_us.max(last.saturating_add(1));
        let before = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(rise(last))
            });
        before.map_or_else(rise, rise)
    }

    /// Records a fence that was given elsewhere.
    pub fn raise(&self, seen: u64) {
        self.last.fetch_max(seen, Ordering::Relaxed);
    }

    /// Returns true if a fence from outside is credible at `wall_us`: at most [`MAX_AHEAD_US`]
    /// ahead of the clock, or at most the last fence seen.
    ///
    /// The second case accepts fences that this server gave while its clock was ahead. It never
    /// raises the counter further.
    pub fn is_credible(&self, fence: u64, wall_us: u64) -> bool {
        fence <= wall_us.saturating_add(MAX_AHEAD_US) || fence <= self.last()
    }

    /// Returns the last fence that was given or seen; 0 if there was none.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_by_the_clock_and_without_it() {
        let fences = Fences::new();
        assert_eq!(fences.next(500), 500);
        assert_eq!(fences.next(500), 501, "the clock stands");
        assert_eq!(fences.next(100), 502, "the clock goes back");
        assert_eq!(fences.next(900), 900);
    }

    #[test]
    fn rises_above_what_was_seen_and_never_falls() {
        let fences = Fences::new();
        fences.raise(1000);
        fences.raise(10);
        assert_eq!(fences.last(), 1000);
        assert_eq!(fences.next(5), 1001);
    }

    #[test]
    fn more_than_a_day_ahead_is_not_credible() {
        let now = 7;
        let fences = Fences::new();
        assert!(fences.is_credible(7 + MAX_AHEAD_US, now));
        assert!(!fences.is_credible(8 + MAX_AHEAD_US, now));
    }

    #[test]
    fn what_was_given_is_credible_but_leads_no_further() {
        let fences = Fences::new();
        fences.raise(7 + 9 * MAX_AHEAD_US);
        assert!(fences.is_credible(7 + 9 * MAX_AHEAD_US, 7));
        assert!(!fences.is_credible(8 + 9 * MAX_AHEAD_US, 7));
    }
}
