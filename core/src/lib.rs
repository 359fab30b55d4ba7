//! The rules of redis-lock, as a library without a server.
//!
//! Nothing in here knows Redis, reads a clock, draws a random number or does I/O. Time and
//! randomness come in as arguments; what has to happen comes out as values. The flow is
//!
//! 1. [`grammar`] turns the words of a command into an [`order::Order`];
//! 2. [`desk::Desk::carry_out`] settles the names concerned, decides, and settles again;
//! 3. its [`desk::Outcome`] holds the answer for the caller, the [`effect::Effect`]s that the
//!    keyspace, the replicas and the append-only file get, and the waiters to wake.
//!
//! A lock's truth is its [`lock::Lock`] value, kept by the server; the queues are kept by the desk
//! and die with the server, as the connections that stand in them do.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod bench;
pub mod codec;
pub mod desk;
pub mod effect;
pub mod fence;
pub mod grammar;
pub mod hand_over;
pub mod holders;
pub mod lock;
pub mod name;
pub mod order;
pub mod queue;
pub mod refusal;
pub mod schedule;
pub mod session;
pub mod slot;
pub mod token;

/// The longest lease and the longest BLOCK: 2^53 - 1 ms, so that every client language can hold it.
pub const MAX_SPAN_MS: u64 = (1 << 53) - 1;

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
}
