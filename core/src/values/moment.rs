//! Points in time and lengths of time.
//!
//! A deadline is the last millisecond in which something is in force: a lease, a BLOCK, a KEEP. It has passed
//! when now > deadline, which is the server's own rule for PX. Clocks are cut to whole milliseconds, so
//! with this rule nothing is ever shorter than asked, and longer by less than 1 ms.

/// The longest lease and the longest BLOCK: 2^53 - 1 ms, so that every client language can hold it.
pub const MAX_SPAN_MS: u64 = (1 << 53) - 1;

/// The latest deadline that an effect or a payload may carry, in ms since the epoch: the longest
/// lease, granted in the year 2255.
pub const MAX_DEADLINE_MS: u64 = MAX_SPAN_MS + (1 << 43);

/// Returns true if a deadline has passed; both on the same clock, in ms.
#[inline(always)]
pub const fn has_passed(deadline_ms: u64, now_ms: u64) -> bool {
    deadline_ms < now_ms
}

/// What is left until a deadline that has not passed, in ms: at least 1.
pub fn left_ms(deadline_ms: u64, now_ms: u64) -> u64 {
    deadline_ms.saturating_sub(now_ms).max(1)
}

/// A point in time, as two clocks have it.
///
/// Leases end by the wall clock, as keys do. Spans that a server measures for itself (how long a
/// client waits, when a session is to be renewed) are measured on a clock that nobody sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The wall clock: microseconds since the Unix epoch.
    pub us: u64,
    /// The steady clock: milliseconds since some moment of this server's life.
    pub steady_ms: u64,
}

impl Moment {
    /// The wall clock in whole milliseconds since the Unix epoch.
    pub const fn ms(self) -> u64 {
        self.us / 1000
    }

    /// When the steady clock will be where the wall clock will show `wall_ms`, if nobody sets that
    /// one meanwhile; now for what is past.
    pub const fn steady_at(self, wall_ms: u64) -> u64 {
        self.steady_ms
            .saturating_add(wall_ms.saturating_sub(self.ms()))
    }

    /// First millisecond of the steady clock in which a lease with this deadline has ended.
    pub const fn steady_after(self, deadline_ms: u64) -> u64 {
        self.steady_at(deadline_ms.saturating_add(1))
    }
}
