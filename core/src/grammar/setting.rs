//! What is told to the grammar beside a command's words.

use crate::values::refusal::Refusal;
use crate::values::slot::Sharding;
use crate::values::token::Token;

/// What a command's words are read against.
pub struct Setting<'a> {
    /// The database that the client has selected.
    pub db: i32,
    /// The lease of a command that names none.
    pub default_lease_ms: u64,
    /// How long a place is kept that says nothing of it.
    pub default_keep_ms: u64,
    /// How keys are divided among servers.
    pub sharding: Sharding,
    /// Draws a token for `*`.
    pub draw_token: &'a dyn Fn() -> Result<Token, Refusal>,
}
