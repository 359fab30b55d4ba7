//! The data of a holder or a waiter: a client's own bytes, shown to each client that may read the
//! key.

use std::sync::Arc;

use crate::values::refusal::Refusal;

/// The most bytes of data.
pub const MAX_DATA_LEN: usize = 1024;

/// The data that a client gave: 0 to [`MAX_DATA_LEN`] bytes. The default is no bytes.
// perf: one word, because every holder and every request has one. Data is rare and copied often.
#[derive(Debug, Default, Eq)]
pub struct Data(Option<Arc<Box<[u8]>>>);

impl PartialEq for Data {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let are_both_empty = self.is_empty() && other.is_empty();
        are_both_empty || self.has_bytes_of(other)
    }
}

impl Clone for Data {
    #[inline(always)]
    fn clone(&self) -> Self {
        match &self.0 {
            None => Self::NONE,
            Some(bytes) => Self::share(bytes),
        }
    }
}

impl Data {
    /// No bytes.
    pub const NONE: Self = Self(None);

    /// Copies the bytes that a client gave.
    ///
    /// # Errors
    /// [`Refusal::Data`] for more than [`MAX_DATA_LEN`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, Refusal> {
        match bytes.len() {
            0 => Ok(Self::NONE),
            1..=MAX_DATA_LEN => Ok(Self(Some(Arc::new(bytes.into())))),
            _ => Err(Refusal::Data),
        }
    }

    #[cold]
    #[inline(never)]
    fn has_bytes_of(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }

    /// Returns another reference to the bytes.
    // perf: out of line, because most holders have no data.
    #[cold]
    #[inline(never)]
    fn share(bytes: &Arc<Box<[u8]>>) -> Self {
        Self(Some(Arc::clone(bytes)))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |bytes| bytes)
    }

    /// Returns true if there are no bytes.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        const COUNTS_BYTES: usize = 2 * size_of::<usize>();
        let bytes = self.0.as_ref();
        bytes.map_or(0, |bytes| {
            COUNTS_BYTES + size_of::<Box<[u8]>>() + bytes.len()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: &[u8]) -> Data {
        Data::new(bytes).unwrap()
    }

    #[test]
    fn data_is_equal_if_its_bytes_are() {
        let all: [&[u8]; 4] = [b"", b"a", b"b", b"ab"];
        for one in all {
            for other in all {
                assert_eq!(data(one) == data(other), one == other, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn it_counts_two_allocated_words_a_box_and_the_bytes() {
        for (len, heap_bytes) in [(0, 0), (1, 16 + 16 + 1), (1024, 16 + 16 + 1024)] {
            assert_eq!(data(&vec![7; len]).heap_bytes(), heap_bytes, "{len} bytes");
        }
        assert_eq!(Data::new(&[7; 1025]), Err(Refusal::Data));
    }
}
