//! The scope of the promises: the holds that a fault may end before their clients know.

use std::time::{Duration, Instant};

/// The lease of every lock.
pub const LEASE: Duration = Duration::from_secs(6);

/// The library's margin, a tenth of the lease.
pub const MARGIN: Duration = Duration::from_millis(600);

/// A time in which a process didn't run: it was stopped, or it was killed at its beginning.
pub type Pause = (Instant, Instant);

/// The reasons why a hold ends out of scope, other than that its process didn't run.
pub const A_FAILOVER: &str = "a failover, or a crash that can lose grants";
pub const A_CUT: &str = "a session's connection was cut";
const A_CLOCK: &str = "a clock was set forward by more than the margin";

/// A time from which on the promises don't cover some holds.
#[derive(Clone, Copy)]
pub struct Limit {
    pub reason: &'static str,
    pub of: Holds,
    /// The time in which it came.
    pub time: (Instant, Instant),
}

/// The holds that a limit is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    All,
    Sessions,
    /// Those whose grant may not have reached all replicas.
    Unreplicated,
}

/// The grounds on which a client relies on a hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    Lease,
    Session,
    /// All replicas have the grant. They may lack its renewals, so it surely lasts until this time.
    Replicated(Instant),
}

impl Limit {
    /// Returns the time at which the limit ends a hold that was requested and ended at these times.
    pub fn end_of(&self, ground: Ground, (asked, to): (Instant, Instant)) -> Option<Instant> {
        let (from, until) = self.time;
        if from > to || until < asked {
            return None;
        }
        match (self.of, ground) {
            (Holds::All, _) | (Holds::Sessions, Ground::Session) => Some(from),
            (Holds::Unreplicated, Ground::Replicated(surely)) => Some(from.max(surely)),
            (Holds::Unreplicated, _) => Some(from),
            (Holds::Sessions, _) => None,
        }
    }
}

/// The moments at which clocks were set forward within the last lease, and by how many ms.
#[derive(Default)]
pub struct Sets(Vec<(Instant, i64)>);

impl Sets {
    /// The most by which clocks may be set forward within one lease, in ms: the library's margin, and a
    /// little less, because a server counts whole ms.
    pub const COVERED_MS: i64 = 500;

    /// Adds a setting by so many ms that began at a time. Returns the limit if the margin doesn't cover
    /// the settings within a lease.
    pub fn add(&mut self, by_ms: i64, from: Instant) -> Option<Limit> {
        let now = Instant::now();
        self.0
            .retain(|(at, _)| now - *at < LEASE + Duration::from_secs(1));
        if by_ms > 0 {
            self.0.push((from, by_ms));
        }
        let sum: i64 = self.0.iter().map(|(_, by_ms)| by_ms).sum();
        let (first, _) = *self
            .0
            .first()
            .filter(|_| by_ms > 0 && sum > Sets::COVERED_MS)?;
        Some(Limit {
            reason: A_CLOCK,
            of: Holds::All,
            time: (first, now),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_margin_does_not_cover_of_a_clock_is_out_of_scope() {
        let (mut sets, now) = (Sets::default(), Instant::now());
        assert!(sets.add(-9000, now).is_none());
        assert!(sets.add(300, now).is_none());
        let limit = sets.add(300, Instant::now()).expect("the sum is too great");
        assert_eq!(limit.time.0, now);
        assert!(sets.add(-1, now).is_none());
        let long_ago = now - 2 * LEASE;
        let mut apart = Sets(vec![(long_ago, 300)]);
        assert!(apart.add(300, now).is_none());
    }

    #[test]
    fn a_failover_ends_a_replicated_hold_when_its_first_lease_is_over() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let limit = |of| Limit {
            reason: A_FAILOVER,
            of,
            time: (at(2), at(3)),
        };
        let hold = (at(1), at(9));
        let replicated = Ground::Replicated(at(6));
        for (of, ground, end) in [
            (Holds::Unreplicated, Ground::Lease, Some(at(2))),
            (Holds::Unreplicated, replicated, Some(at(6))),
            (Holds::All, replicated, Some(at(2))),
            (Holds::Sessions, Ground::Session, Some(at(2))),
            (Holds::Sessions, Ground::Lease, None),
        ] {
            assert_eq!(limit(of).end_of(ground, hold), end);
        }
        let later = (at(4), at(9));
        assert_eq!(limit(Holds::All).end_of(Ground::Lease, later), None);
    }
}
