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
pub mod lock;
pub mod name;
pub mod order;
pub mod queue;
pub mod refusal;
pub mod session;
pub mod token;

/// The longest lease and the longest BLOCK: 2^53 - 1 ms, so that every client language can hold it.
pub const MAX_SPAN_MS: u64 = (1 << 53) - 1;

/// A point in time as the caller's clock had it, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Microseconds since the Unix epoch.
    pub us: u64,
}

impl Moment {
    /// The moment that many milliseconds after the Unix epoch.
    pub const fn from_ms(ms: u64) -> Self {
        Self { us: ms * 1000 }
    }

    /// Whole milliseconds since the Unix epoch.
    pub const fn ms(self) -> u64 {
        self.us / 1000
    }
}
