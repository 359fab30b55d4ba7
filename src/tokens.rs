//! Tokens for clients that ask for one with `*`.

use rand::rngs::SysRng;
use rand::TryRng;
use redis_lock_core::refusal::Refusal;
use redis_lock_core::token::Token;

/// A token of 128 bits from the system's generator.
pub fn draw() -> Result<Token, Refusal> {
    let mut bits = [0; 16];
    SysRng
        .try_fill_bytes(&mut bits)
        .map_err(|_| Refusal::NoRandomness)?;
    Ok(Token::from_bits(u128::from_le_bytes(bits)))
}
