//! What a token asks for.

use crate::values::holder::Mode;
use crate::values::token::Token;

/// What a grant does to the holds of its token: a newcomer has one, unless the client counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Renews the lease, the holds stay: a command whose reply was lost can be sent again.
    Renews,
    /// Adds one hold (REENTRANT): each needs a RELEASE of its own.
    Counts,
    /// Makes it so many (HOLDS): the client counts.
    Sets(u64),
}

impl Repeat {
    /// The holds of a newcomer.
    pub const fn first_holds(self) -> u64 {
        match self {
            Self::Renews | Self::Counts => 1,
            Self::Sets(holds) => holds,
        }
    }
}

/// What keeps a grant in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its lease. Where it is tied to a connection already, it stays so.
    Lease,
    /// The caller's connection (SESSION): it is renewed while that lives, and ends with it.
    Session {
        /// How long it lasts from then on (KEEP); `None`: it ends at once.
        keep_ms: Option<u64>,
    },
    /// Its lease alone from now on (NOSESSION).
    Untied,
}

/// What a token wants to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub token: Token,
    /// Alone or beside others.
    pub mode: Mode,
    /// The most holders it wants to be one of; 0: no limit.
    pub limit: u32,
    /// How many holders it is to count as (PERMITS): 1 without a limit.
    pub permits: u32,
    /// How long the grant is to last, counted from the grant.
    pub lease_ms: u64,
    /// What happens when it holds already.
    pub repeat: Repeat,
    /// What keeps the grant in force.
    pub life: Life,
}

impl Request {
    /// Whether it wants as much of a lock as another one, so that it may stand in its place in a queue.
    pub fn takes_as_much_as(&self, other: &Self) -> bool {
        (self.mode, self.limit, self.permits) == (other.mode, other.limit, other.permits)
    }
}
