//! One grant, and how grants share a lock.

use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// What is added to the stored `since` of a grant that its token has not claimed yet, in ms. A version that
/// doesn't know of it reads a grant of the far future, which has been held for 0 ms.
const UNCLAIMED_SINCE_MS: u64 = 1 << 52;

/// Whether holders admit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder, nobody beside it.
    Exclusive,
    /// Holders that admit each other, up to the smallest of their limits.
    Shared,
}

impl Mode {
    /// The mode as replies and effects spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

/// One grant that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who holds.
    pub token: Token,
    /// The number of the grant.
    pub fence: u64,
    /// How many RELEASEs it takes to leave; at least 1.
    pub holds: u64,
    /// The most holders that this one admits, itself included; 0: no limit.
    pub limit: u32,
    /// How many holders it counts as where there is a limit, its own or another's: 1 without a limit.
    pub permits: u32,
    /// When the lease ends, in ms since the epoch.
    pub deadline_ms: u64,
    /// Its own length: the lease as a grant, a repeat or an extension set it last, in ms. What is left of
    /// it may be less or more, as an EXPIRE by hand had it.
    pub lease_ms: u64,
    /// When the grant that gave the fence was made, in ms since the epoch.
    pub since_ms: u64,
    /// The connection last granted, 0 when unknown. Known to this server process only: neither
    /// stored nor replicated.
    pub client_id: u64,
    /// The session that ties the grant to a connection, if one does: neither stored nor replicated. Or the mark of
    /// a grant that its token has not claimed yet, which is both.
    pub session: SessionId,
}

impl Holder {
    /// The field `since` as it is stored and replicated, in ms: with the mark of an unclaimed grant.
    #[inline(always)]
    pub fn stored_since_ms(&self) -> u64 {
        let is_unclaimed = self.session == SessionId::UNCLAIMED;
        self.since_ms + if is_unclaimed { UNCLAIMED_SINCE_MS } else { 0 }
    }

    /// What [`Holder::stored_since_ms`] stands for: since when the grant is held, in ms since the epoch, and its mark.
    pub const fn read_since_ms(stored_ms: u64) -> (u64, SessionId) {
        match stored_ms.checked_sub(UNCLAIMED_SINCE_MS) {
            Some(since_ms) => (since_ms, SessionId::UNCLAIMED),
            None => (stored_ms, SessionId::NONE),
        }
    }
}
