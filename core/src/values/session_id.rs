//! The number of a session.

/// The number of a session, or that there is none. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u64);

impl SessionId {
    /// No session.
    pub const NONE: Self = Self(0);

    /// No session either: the grant was made to a place in the queue, and its token has yet to claim it.
    /// Kept here because it goes and stays with a grant as a session does. Unlike a session it is stored and
    /// replicated, see [`crate::values::holder::Holder::stored_since_ms`].
    pub const UNCLAIMED: Self = Self(u64::MAX);

    /// Whether it is a session.
    pub fn is_session(self) -> bool {
        self != Self::NONE && self != Self::UNCLAIMED
    }

    /// The session with this number.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }
}
