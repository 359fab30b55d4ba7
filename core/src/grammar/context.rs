//! The context in which a command's words are read: its database, and defaults, distribution of keys
//! and sources of tokens.

use crate::values::refusal::Refusal;
use crate::values::slot::Sharding;
use crate::values::token::Token;

/// The context in which a command's words are read.
pub struct ParseContext<'a> {
    /// The database that the client has selected.
    pub db: i32,
    /// The lease of a command without one, in ms.
    pub default_lease_ms: u64,
    /// The KEEP of a LOCK.QUEUE without one, in ms.
    pub default_keep_ms: u64,
    /// The WITHIN of a command with REPLICAS and without WITHIN, in ms.
    pub default_within_ms: u64,
    /// The distribution of keys among servers.
    pub sharding: Sharding,
    /// The function that returns true if FENCE may raise a fence to this number now.
    pub is_credible_fence: &'a dyn Fn(u64) -> bool,
    /// The function that draws a token for `*`.
    pub draw_token: &'a dyn Fn() -> Result<Token, Refusal>,
}
