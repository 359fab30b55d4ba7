//! Session ids.

use std::ops::Range;

/// The number of a session, or a mark for a grant without one. Numbers are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u64);

impl SessionId {
    /// No session.
    pub const NONE: Self = Self(0);

    /// No session: the grant was made to a place, and its token has not claimed it yet.
    ///
    /// The mark is kept here because it stays with a grant like a session does. Unlike a session,
    /// it is stored and replicated, see [`crate::values::holder::Holder::stored_since_ms`].
    pub const UNCLAIMED: Self = Self(u64::MAX);

    /// Returns true if this is a session.
    pub fn is_session(self) -> bool {
        self != Self::NONE && self != Self::UNCLAIMED
    }

    /// Returns the session with this number.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// Returns the sessions with the numbers of a range.
    pub fn all_in(range: &Range<Self>) -> impl Iterator<Item = Self> {
        (range.start.0..range.end.0).map(Self)
    }
}
