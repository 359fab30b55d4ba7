//! Points in time and lengths of time.
//!
//! A deadline is the last millisecond in which a lease, a BLOCK or a KEEP is in force. It has
//! passed when now > deadline, which is the server's own rule for PX. Clocks are cut to whole
//! milliseconds. So with this rule no span is shorter than asked, and none is longer by 1 ms or
//! more.

/// The longest lease, BLOCK and KEEP: 2^53 - 1 ms, so that every client language can represent it.
pub const MAX_SPAN_MS: u64 = (1 << 53) - 1;

/// The latest deadline that an effect or a payload may carry, in ms since the epoch: the longest
/// lease, granted in the year 2255.
pub const MAX_DEADLINE_MS: u64 = MAX_SPAN_MS + (1 << 43);

/// Returns true if a deadline has passed. Both times are on the same clock, in ms.
#[inline(always)]
pub const fn has_passed(deadline_ms: u64, now_ms: u64) -> bool {
    deadline_ms < now_ms
}

/// Returns the time until a deadline that has not passed, in ms; at least 1.
pub fn left_ms(deadline_ms: u64, now_ms: u64) -> u64 {
    deadline_ms.saturating_sub(now_ms).max(1)
}

/// A point in time on two clocks.
///
/// Leases end by the wall clock, like keys. Spans that a server measures for itself use the steady
/// clock, which is never set: a client's wait, or the time until a session is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The wall clock: microseconds since the Unix epoch.
    pub wall_us: u64,
    /// The steady clock: milliseconds since a fixed point in the life of this server process.
    pub steady_ms: u64,
}

impl Now {
    /// Returns the wall clock in whole milliseconds since the Unix epoch.
    pub const fn ms(self) -> u64 {
        self.wall_us / 1000
    }

    /// Returns the steady time at which the wall clock will show `wall_ms`, if the wall clock is
    /// not set meanwhile. Returns the steady time now for a `wall_ms` in the past.
    pub const fn steady_at(self, wall_ms: u64) -> u64 {
        self.steady_ms
            .saturating_add(wall_ms.saturating_sub(self.ms()))
    }

    /// Returns the first millisecond of the steady clock in which a lease with this deadline has
    /// ended.
    pub const fn steady_after(self, deadline_ms: u64) -> u64 {
        self.steady_at(deadline_ms.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_documents() {
        let bounds = [MAX_SPAN_MS, MAX_DEADLINE_MS];
        assert_eq!(bounds, [9_007_199_254_740_991, 9_015_995_347_763_199]);
    }

    #[test]
    fn a_deadline_that_has_not_passed_leaves_at_least_1_ms() {
        for (deadline_ms, now_ms, left) in [(9, 2, 7), (9, 8, 1), (9, 9, 1), (9, 10, 1)] {
            assert_eq!(
                left_ms(deadline_ms, now_ms),
                left,
                "{deadline_ms} at {now_ms}"
            );
        }
    }
}
