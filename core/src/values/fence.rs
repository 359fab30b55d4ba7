//! Fencing tokens: numbers that rise with every grant of the whole server.
//!
//! `fence = max(last + 1, now in microseconds)`
//!
//! 1. The clock makes fences rise across a restart without persistence and across a failover, unless
//!    the counter was ahead of the clock.
//! 2. The counter makes fences rise when the clock stops or is set back.
//! 3. Every fence that arrives from elsewhere (replication, RDB, AOF, RESTORE) raises the counter.
//! 4. A counter can be ahead of the clock by what a client sent (FENCE, RESTORE), by a promotion, or
//!    because the clock was set back. Bounds limit what a client can send. Without them one command
//!    could use up the numbers that clients can represent.
//! 5. If the counter is ahead, a lost grant of the old primary has a fence that the clock of the new
//!    one hasn't reached. So a promotion then skips as many fences as the old primary may have given
//!    in lost grants.
//! 6. The clock of a new primary can be set back later. So a promotion counts the time as seen.
//! 7. Microseconds since 1970 fit in 53 bits until the year 2255.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::values::decimal;

/// The most that a fence from RESTORE, or the last fence in a file, may be ahead of the clock: one
/// day, in microseconds.
pub const MAX_RESTORED_AHEAD_US: u64 = 24 * 60 * 60 * 1_000_000;

/// The most that the fence of FENCE may be ahead of the clock: 60 s, in microseconds.
pub const MAX_RAISED_AHEAD_US: u64 = 60 * 1_000_000;

/// The number of fences that a promotion skips if the counter is ahead of the clock.
pub const PROMOTION_JUMP: u64 = 60_000_000;

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

    /// Returns the next fence, which is greater than all that this counter has given or seen.
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

    /// Records the last fence of a file, which counts as at most [`MAX_RESTORED_AHEAD_US`] ahead of
    /// the clock. Returns false if the file's was greater.
    pub fn raise_stored(&self, stored: u64, wall_us: u64) -> bool {
        let most = wall_us.saturating_add(MAX_RESTORED_AHEAD_US);
        self.raise(stored.min(most));
        stored <= most
    }

    /// Skips [`PROMOTION_JUMP`] fences if the counter is ahead of the clock, because this server has
    /// become a primary. Grants of the old primary that never arrived have fences among the skipped.
    /// Otherwise they have fences below the clock, which the counter then has seen. Returns true if it
    /// skipped fences.
    pub fn promote(&self, wall_us: u64) -> bool {
        let last = self.last();
        let is_ahead = last > wall_us;
        let least = if is_ahead {
            last.saturating_add(PROMOTION_JUMP)
        } else {
            wall_us
        };
        self.raise(least);
        is_ahead
    }

    /// Returns true if a fence from outside is credible at `wall_us`: at most `ahead_us` ahead of
    /// the clock, or at most the last fence seen.
    ///
    /// The second case accepts fences that this server gave while its clock was ahead. It never
    /// raises the counter further.
    pub fn is_credible(&self, fence: u64, wall_us: u64, ahead_us: u64) -> bool {
        fence <= wall_us.saturating_add(ahead_us) || fence <= self.last()
    }

    /// Returns the last fence that was given or seen; 0 if there was none.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }
}

/// Returns the expiry of the key that keeps a fence in a file, in ms since the epoch: the first ms
/// in which the clock is past the fence.
pub const fn stored_expiry_ms(fence: u64) -> u64 {
    fence / 1000 + 1
}

/// Returns the fence that a key keeps. `None` if text and expiry are not of that form: the key is a
/// client's own.
pub fn parse_stored(text: &[u8], expiry_ms: Option<u64>) -> Option<u64> {
    decimal::parse(text).filter(|fence| expiry_ms == Some(stored_expiry_ms(*fence)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A bound, in microseconds.
    const AHEAD: u64 = 1_000;

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
    fn more_than_the_bound_ahead_is_not_credible() {
        let now = 7;
        let fences = Fences::new();
        assert!(fences.is_credible(7 + AHEAD, now, AHEAD));
        assert!(!fences.is_credible(8 + AHEAD, now, AHEAD));
    }

    #[test]
    fn what_was_given_is_credible_but_leads_no_further() {
        let fences = Fences::new();
        fences.raise(7 + 9 * AHEAD);
        assert!(fences.is_credible(7 + 9 * AHEAD, 7, AHEAD));
        assert!(!fences.is_credible(8 + 9 * AHEAD, 7, AHEAD));
    }

    #[test]
    fn the_last_fence_of_a_file_counts_as_a_day_ahead_of_the_clock_at_most() {
        let most = 7 + MAX_RESTORED_AHEAD_US;
        for (stored, counted) in [(3, 3), (most, most), (most + 1, most), (u64::MAX, most)] {
            let fences = Fences::new();
            assert_eq!(fences.raise_stored(stored, 7), stored == counted);
            assert_eq!(fences.last(), counted);
        }
        let ahead = Fences::new();
        ahead.raise(most + 5);
        assert!(!ahead.raise_stored(most + 9, 7));
        assert_eq!(ahead.last(), most + 5, "it never falls");
    }

    #[test]
    fn a_promotion_skips_fences_only_if_the_counter_is_ahead_of_the_clock() {
        for (last, after) in [(0, 500), (499, 500), (500, 500), (501, 60_000_501)] {
            let fences = Fences::new();
            fences.raise(last);
            assert_eq!(fences.promote(500), after > 500);
            assert_eq!(fences.last(), after);
        }
        let last = Fences::new();
        last.raise(u64::MAX);
        assert!(last.promote(500));
        assert_eq!(last.last(), u64::MAX);
    }

    #[test]
    fn a_clock_that_goes_back_after_a_promotion_repeats_no_lost_fence() {
        let fences = Fences::new();
        fences.raise(100);
        let lost = 400;
        fences.promote(500);
        assert!(fences.next(200) > lost);
    }

    #[test]
    fn only_a_decimal_with_the_expiry_of_its_time_is_a_stored_fence() {
        let (text, expiry) = (b"1795826739184165".as_slice(), 1_795_826_739_185);
        assert_eq!(
            parse_stored(text, Some(expiry)),
            Some(1_795_826_739_184_165)
        );
        for other in [None, Some(expiry - 1), Some(expiry + 1), Some(0)] {
            assert_eq!(parse_stored(text, other), None, "{other:?}");
        }
        for other in ["", "01795826739184165", "1795826739184165 ", "-1", "why"] {
            assert_eq!(
                parse_stored(other.as_bytes(), Some(expiry)),
                None,
                "{other}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_fence_is_stored_until_the_clock_is_past_it(fence: u64) {
            let expiry_ms = stored_expiry_ms(fence);
            prop_assert_eq!(parse_stored(fence.to_string().as_bytes(), Some(expiry_ms)), Some(fence));
            prop_assert!(u128::from(expiry_ms) * 1000 > fence.into());
        }
    }

    #[test]
    fn the_bounds_are_those_of_the_documents() {
        let bounds = [MAX_RESTORED_AHEAD_US, MAX_RAISED_AHEAD_US, PROMOTION_JUMP];
        assert_eq!(bounds, [86_400_000_000, 60_000_000, 60_000_000]);
    }
}
