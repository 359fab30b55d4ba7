//! Grants.

use crate::values::token::Token;

/// A grant as the client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who holds.
    pub token: Token,
    /// The number of the grant.
    pub fence: u64,
}
