//! A token names the owner of a lock: 1 to 256 bytes, binary-safe.

use std::fmt;

use smallvec::SmallVec;

use crate::refusal::Refusal;

/// The longest token, in bytes.
pub const MAX_TOKEN_LEN: usize = 256;

/// An owner's name. Invariant: 1 to [`MAX_TOKEN_LEN`] bytes, by construction.
///
/// The 32 characters of a token drawn by the server lie in the value itself, without an allocation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(SmallVec<[u8; 32]>);

impl Token {
    /// A token of a client's own choice.
    ///
    /// # Errors
    /// [`Refusal::TokenLength`] when there are no bytes or more than [`MAX_TOKEN_LEN`].
    pub fn new(bytes: &[u8]) -> Result<Self, Refusal> {
        if bytes.is_empty() || bytes.len() > MAX_TOKEN_LEN {
            return Err(Refusal::TokenLength);
        }
        Ok(Self(SmallVec::from_slice(bytes)))
    }

    /// A token of 128 random bits, as 32 hexadecimal characters.
    pub fn from_bits(bits: u128) -> Self {
        Self(SmallVec::from_slice(format!("{bits:032x}").as_bytes()))
    }

    /// The token's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        if self.0.spilled() {
            self.0.capacity()
        } else {
            0
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0.escape_ascii())
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
}
