//! Numbers with bounds.

use crate::values::decimal;
use crate::values::refusal::Refusal;

/// Parses a number within these bounds, both included.
///
/// # Errors
/// `otherwise` for all other words.
#[inline(never)]
pub fn within(word: &[u8], least: u64, most: u64, otherwise: Refusal) -> Result<u64, Refusal> {
    decimal::parse(word)
        .filter(|n| (least..=most).contains(n))
        .ok_or(otherwise)
}
