//! Random tokens for clients that ask for one with `*`, and random bytes.

use rand::rngs::SysRng;
use rand::TryRng;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::token::Token;

/// Returns a token of 128 random bits from the system's generator.
pub fn draw() -> Result<Token, Refusal> {
    let mut bits = [0; 16];
    fill(&mut bits)?;
    Ok(Token::from_bits(u128::from_le_bytes(bits)))
}

/// Fills `bytes` from the system's random generator.
pub fn fill(bytes: &mut [u8]) -> Result<(), Refusal> {
    SysRng
        .try_fill_bytes(bytes)
        .map_err(|_| Refusal::NoRandomness)
}
