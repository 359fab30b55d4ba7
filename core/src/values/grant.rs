//! Grants as they are replied to clients.

use crate::values::token::Token;

/// A grant as it is replied to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The holder's token.
    pub token: Token,
    /// The fence of the grant.
    pub fence: u64,
}
