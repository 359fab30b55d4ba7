//! Requests: what a token asks for.

use std::num::NonZeroU16;

use crate::values::data::Data;
use crate::values::holder::Mode;
use crate::values::token::Token;

/// The change of a token's holds by a grant. A newcomer has one hold, unless HOLDS gives the
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reentry {
    /// Keeps the holds and renews the lease. So a command whose reply was lost can be sent again.
    Renews,
    /// Adds one hold (REENTRANT). Each hold needs its own RELEASE.
    Counts,
    /// Sets the number of holds (HOLDS), which the client counts.
    Sets(u32),
}

impl Reentry {
    /// Returns the holds of a newcomer.
    pub const fn first_holds(self) -> u64 {
        match self {
            Self::Renews | Self::Counts => 1,
            Self::Sets(holds) => holds as u64,
        }
    }
}

/// The lease kind of a grant: a plain lease, or a lease that is tied to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// A plain lease. A grant that is tied to a connection already stays tied.
    Lease,
    /// A lease that is tied to the caller's connection (SESSION). It is renewed while the
    /// connection is open, and ends with the connection.
    Session {
        /// The lease after the connection is lost, in ms (KEEP); `None`: the grant ends at once.
        keep_ms: Option<u64>,
    },
    /// A plain lease from now on, without a tie (NOSESSION).
    Untied,
}

/// A token's request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The token that asks.
    pub token: Token,
    /// The mode.
    pub mode: Mode,
    /// The most permits that all holders may take (LIMIT); 0: no limit.
    pub limit: u32,
    /// The permits to take (PERMITS); 1 without a limit.
    pub permits: u32,
    /// The lease, in ms from the grant.
    pub lease_ms: u64,
    /// The change of the token's holds.
    pub reentry: Reentry,
    /// The lease kind of the grant.
    pub lease_kind: LeaseKind,
    /// The data of the holder; `None`: a token that holds already keeps its data.
    pub data: Option<Data>,
}

/// The replicas that must have a command's effects before its caller gets the reply (REPLICAS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas, 1 to 1000.
    pub count: NonZeroU16,
    /// The longest time to wait for them, in ms (WITHIN).
    pub within_ms: u64,
}

impl Request {
    /// Returns true if the request takes as much of a lock as `other`. Then it may continue at the
    /// position of `other` in a queue.
    pub fn takes_as_much_as(&self, other: &Self) -> bool {
        (self.mode, self.limit, self.permits) == (other.mode, other.limit, other.permits)
    }
}
