//! Holders: one grant each, and the mode in which holders share a lock.

use crate::values::data::Data;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// The number added to the stored `since` of a grant that its token has not claimed yet, in ms. A
/// version without this mark reads a grant of the far future, which has been held for 0 ms.
const UNCLAIMED_SINCE_MS: u64 = 1 << 52;

/// The mode in which a token holds a lock or asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder, which admits no other.
    Exclusive,
    /// Holders that admit each other, up to the smallest of their limits.
    Shared,
}

impl Mode {
    /// Returns the mode as replies and effects spell it.
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
    /// The holder's token.
    pub token: Token,
    /// The fence of the grant. Several shared holders have the same one if FENCE raised it.
    pub fence: u64,
    /// The number of RELEASEs that end the grant; at least 1.
    pub holds: u64,
    /// The most permits that all holders may take, this holder included; 0: no limit. A holder
    /// without PERMITS takes one.
    pub limit: u32,
    /// The permits that this holder takes. They count against every holder's limit. 1 if this
    /// holder set no limit.
    pub permits: u32,
    /// The deadline of the lease, in ms since the epoch.
    pub deadline_ms: u64,
    /// The length of the lease as a grant, a repeat or an extension last set it, in ms. The
    /// deadline can differ: an EXPIRE by hand shortens it, and KEEP sets it.
    pub lease_ms: u64,
    /// The time of the grant that gave the fence, in ms since the epoch.
    pub since_ms: u64,
    /// The client id of the connection that was last granted; 0 if unknown. Known to this server
    /// process only: neither stored nor replicated.
    pub client_id: u64,
    /// The session that ties the grant to a connection, if there is one. It is neither stored nor
    /// replicated. [`SessionId::UNCLAIMED`] marks a grant that its token has not claimed yet. That
    /// mark is stored and replicated.
    pub session: SessionId,
    /// The data that the token's commands brought. No rule depends on it.
    pub data: Data,
}

impl Holder {
    /// Returns the holder's rank among the holders of its lock. No two of them have the same.
    #[inline(always)]
    pub const fn rank(&self) -> (u64, &Token) {
        (self.fence, &self.token)
    }

    /// Returns the field `since` as it is stored and replicated, in ms: with the mark of an
    /// unclaimed grant.
    #[inline(always)]
    pub fn stored_since_ms(&self) -> u64 {
        let is_unclaimed = self.session == SessionId::UNCLAIMED;
        self.since_ms + if is_unclaimed { UNCLAIMED_SINCE_MS } else { 0 }
    }

    /// Splits the result of [`Holder::stored_since_ms`] into the time of the grant, in ms since the
    /// epoch, and its mark. Returns `None` for a number that it never returns: a time so late would
    /// be read as another mark once its own was gone.
    pub const fn read_since_ms(stored_ms: u64) -> Option<(u64, SessionId)> {
        match stored_ms.checked_sub(UNCLAIMED_SINCE_MS) {
            Some(UNCLAIMED_SINCE_MS..) => None,
            Some(since_ms) => Some((since_ms, SessionId::UNCLAIMED)),
            None => Some((stored_ms, SessionId::NONE)),
        }
    }
}
