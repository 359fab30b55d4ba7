//! Tokens for clients that ask for one with `*`.

use rand::rngs::SysRng;
use rand::TryRng;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::token::Token;

/// A token of 128 bits from the system's generator.
pub fn draw() -> Result<Token, Refusal> {
    let mut bits = [0; 16];
    fill(&mut bits)?;
    Ok(Token::from_bits(u128::from_le_bytes(bits)))
}

/// Random bytes from the system's generator.
pub fn fill(bytes: &mut [u8]) -> Result<(), Refusal> {
    SysRng
        .try_fill_bytes(bytes)
        .map_err(|_| Refusal::NoRandomness)
}
