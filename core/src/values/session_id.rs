//! The number of a session.

/// The number of a session, or that there is none. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u64);

impl SessionId {
    /// No session.
    pub const NONE: Self = Self(0);

    /// The session with this number.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }
}
