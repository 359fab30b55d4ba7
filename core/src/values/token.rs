//! Tokens: the ids of holders and waiters, 1 to 256 bytes, binary-safe.

use std::fmt;

use crate::hints::unlikely;
use crate::values::refusal::Refusal;
use crate::values::short_bytes::ShortBytes;

/// The longest token, in bytes.
pub const MAX_TOKEN_LEN: usize = 256;

/// The longest token that is stored without an allocation, in bytes. Tokens that the server draws
/// (32 characters) and UUIDs as text (36) fit.
const INLINE_TOKEN_LEN: usize = 38;

/// The id of a holder or a waiter. Invariant: 1 to [`MAX_TOKEN_LEN`] bytes, by construction. Cheap
/// to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(ShortBytes<INLINE_TOKEN_LEN>);

impl Token {
    /// Returns the token with these bytes.
    ///
    /// # Errors
    /// [`Refusal::TokenLength`] if there are no bytes or more than [`MAX_TOKEN_LEN`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Self, Refusal> {
        if unlikely(bytes.is_empty() || bytes.len() > MAX_TOKEN_LEN) {
            return Err(Refusal::TokenLength);
        }
        Ok(Self(ShortBytes::new(bytes)))
    }

    /// Returns the token of the first `len` of these bytes, behind which are zeros; `None` if `len`
    /// is 0 or exceeds the number of bytes.
    #[inline(always)]
    pub fn of_padded<const M: usize>(padded: &[u8; M], len: u8) -> Option<Self> {
        let bytes = ShortBytes::of_padded(padded, len)?;
        (len > 0).then_some(Self(bytes))
    }

    /// Returns the bytes with zeros behind them, and their number; `None` if there are more than
    /// `M`.
    #[inline(always)]
    pub fn padded<const M: usize>(&self) -> Option<(&[u8; M], u8)> {
        self.0.padded()
    }

    /// Returns the token of 128 random bits, as 32 hexadecimal characters.
    pub fn from_bits(bits: u128) -> Self {
        Self(ShortBytes::new(format!("{bits:032x}").as_bytes()))
    }

    /// Returns the bytes of the token.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Returns the bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_checked_at_both_ends() {
        for (len, fits) in [(0, false), (1, true), (256, true), (257, false)] {
            assert_eq!(Token::new(&vec![b'x'; len]).is_ok(), fits, "{len} bytes");
        }
    }

    #[test]
    fn drawn_tokens_are_32_hex_characters() {
        assert_eq!(Token::from_bits(0).as_bytes(), [b'0'; 32]);
        assert_eq!(Token::from_bits(u128::MAX).as_bytes(), [b'f'; 32]);
    }

    #[test]
    fn it_is_shown_with_escapes_and_counts_its_allocation() {
        let short = Token::new(b"a\x00b").unwrap();
        assert_eq!(format!("{short:?}"), "Token(a\\x00b)");
        assert_eq!(short.heap_bytes(), 0);
        assert_eq!(Token::new(&[b'x'; 38]).unwrap().heap_bytes(), 0);
        assert_eq!(Token::new(&[b'x'; 39]).unwrap().heap_bytes(), 39 + 16);
    }

    #[test]
    fn padded_bytes_need_a_length_within_them() {
        assert_eq!(Token::of_padded(&[0; 4], 0), None);
        assert_eq!(Token::of_padded(b"a\0\0\0", 1), Token::new(b"a").ok());
        assert_eq!(Token::of_padded(b"abcd", 5), None);
    }
}
