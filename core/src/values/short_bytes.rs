//! Byte strings that are mostly short. Short ones are stored in the value itself, long ones are
//! shared.

// perf: a `SmallVec` has a word for its capacity, and its bytes behind the length can't be read. With
// it a place took 609 bytes instead of 539, and a pair 1.4 % more instructions of the commands.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::hints::cold_path;

/// A byte string. Up to `N` bytes need no allocation, and a clone never needs one. `N` is at most
/// 255.
pub struct ShortBytes<const N: usize>(Form<N>);

enum Form<const N: usize> {
    Inline(Inline<N>),
    Shared(Arc<[u8]>),
}

/// The first `len` of `bytes`. Invariant: `len` is at most `N`, and the bytes behind are 0.
#[derive(Clone, Copy)]
struct Inline<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Inline<N> {
    #[inline(always)]
    fn as_slice(&self) -> &[u8] {
        let Some(bytes) = self.bytes.get(..usize::from(self.len)) else {
            cold_path();
            return &[];
        };
        bytes
    }
}

impl<const N: usize> Clone for ShortBytes<N> {
    #[inline(always)]
    fn clone(&self) -> Self {
        match &self.0 {
            Form::Inline(inline) => Self(Form::Inline(*inline)),
            Form::Shared(bytes) => Self::share(bytes),
        }
    }
}

impl<const N: usize> ShortBytes<N> {
    /// Returns a copy of these bytes.
    #[inline]
    pub fn new(bytes: &[u8]) -> Self {
        // perf: filled in place. If there are too many bytes, the truncated length is not used,
        // because the bytes are allocated instead.
        let mut new = Self(Form::Inline(Inline {
            len: bytes.len() as u8,
            bytes: [0; N],
        }));
        match &mut new.0 {
            Form::Inline(Inline { bytes: own, .. }) if bytes.len() <= N => {
                if let Some(start) = own.get_mut(..bytes.len()) {
                    start.copy_from_slice(bytes);
                }
            }
            Form::Inline(_) | Form::Shared(_) => new = Self::allocate(bytes),
        }
        new
    }

    /// Returns a copy of many bytes, in an allocation.
    // perf: out of line, so that the copy of few bytes has a constant length.
    #[cold]
    #[inline(never)]
    fn allocate(bytes: &[u8]) -> Self {
        Self(Form::Shared(Arc::from(bytes)))
    }

    /// Returns the shared bytes once more.
    // perf: out of line, like `allocate`.
    #[cold]
    #[inline(never)]
    fn share(bytes: &Arc<[u8]>) -> Self {
        Self(Form::Shared(Arc::clone(bytes)))
    }

    /// Returns the first `len` of these bytes, behind which are zeros; `None` if there are fewer
    /// bytes, or if `M` exceeds `N`.
    // perf: a copy of constant length, which needs no call.
    #[inline(always)]
    pub fn of_padded<const M: usize>(padded: &[u8; M], len: u8) -> Option<Self> {
        let mut bytes = [0; N];
        *bytes.first_chunk_mut()? = *padded;
        (usize::from(len) <= M).then_some(Self(Form::Inline(Inline { len, bytes })))
    }

    /// Returns the bytes with zeros behind them, and their number; `None` if there are more than
    /// `M`.
    #[inline(always)]
    pub fn padded<const M: usize>(&self) -> Option<(&[u8; M], u8)> {
        match &self.0 {
            Form::Inline(own) if usize::from(own.len) <= M => {
                Some((own.bytes.first_chunk()?, own.len))
            }
            Form::Inline(_) | Form::Shared(_) => None,
        }
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Form::Inline(own) => own.as_slice(),
            Form::Shared(bytes) => {
                cold_path();
                bytes
            }
        }
    }

    /// Returns the bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Inline(_) => 0,
            Form::Shared(bytes) => bytes.len() + 2 * size_of::<usize>(),
        }
    }
}

impl<const N: usize> std::fmt::Debug for ShortBytes<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.as_slice().escape_ascii())
    }
}

impl<const N: usize> Borrow<[u8]> for ShortBytes<N> {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl<const N: usize> PartialEq for ShortBytes<N> {
    // perf: a comparison of constant length, which needs no call.
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Form::Inline(own), Form::Inline(other)) => {
                own.len == other.len && own.bytes == other.bytes
            }
            (Form::Shared(own), Form::Shared(other)) => own == other,
            (Form::Inline(_), Form::Shared(_)) | (Form::Shared(_), Form::Inline(_)) => false,
        }
    }
}

impl<const N: usize> Eq for ShortBytes<N> {}

impl<const N: usize> PartialOrd for ShortBytes<N> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for ShortBytes<N> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl<const N: usize> Hash for ShortBytes<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn many_bytes_are_shared() {
        for (len, shared) in [(0, false), (8, false), (9, true), (300, true)] {
            let bytes = ShortBytes::<8>::new(&vec![7; len]);
            assert_eq!(bytes.as_slice(), vec![7; len]);
            assert_eq!(bytes.heap_bytes() > 0, shared, "{len} bytes");
        }
    }

    #[test]
    fn padded_bytes_are_the_same_bytes() {
        for len in 0..=8 {
            let bytes = ShortBytes::<8>::new(&vec![7; len]);
            let padded = bytes.padded::<6>().map(|(padded, len)| (*padded, len));
            assert_eq!(padded.is_some(), len <= 6, "{len} bytes");
            if let Some((padded, len)) = padded {
                assert_eq!(ShortBytes::<8>::of_padded(&padded, len), Some(bytes));
            }
        }
        assert_eq!(ShortBytes::<8>::new(&[7; 9]).padded::<8>(), None);
        assert_eq!(ShortBytes::<8>::of_padded(&[7; 6], 7), None);
    }

    proptest! {
        #[test]
        fn they_compare_as_their_slices_do(
            one in proptest::collection::vec(0u8..3, 0..20),
            other in proptest::collection::vec(0u8..3, 0..20),
        ) {
            let (short, long) = (ShortBytes::<8>::new(&one), ShortBytes::<8>::new(&other));
            prop_assert_eq!(short.cmp(&long), one.cmp(&other));
            prop_assert_eq!(short == long, one == other);
            let copy = short.clone();
            prop_assert_eq!(copy.as_slice(), one);
        }
    }

    /// Short bytes are in the value. Others share an allocation with two counts.
    #[test]
    fn it_counts_the_bytes_of_its_allocation() {
        for (len, heap_bytes) in [(0, 0), (8, 0), (9, 9 + 16), (40, 40 + 16)] {
            let bytes = ShortBytes::<8>::new(&vec![b'x'; len]);
            assert_eq!(bytes.heap_bytes(), heap_bytes, "{len} bytes");
        }
    }

    #[test]
    fn it_is_shown_borrowed_and_hashed_like_its_bytes() {
        use std::hash::{BuildHasher, RandomState};
        let state = RandomState::new();
        for text in ["", "a\x00b", "longer than eight bytes"] {
            let bytes = ShortBytes::<8>::new(text.as_bytes());
            let slice: &[u8] = bytes.borrow();
            assert_eq!(slice, text.as_bytes());
            assert_eq!(
                format!("{bytes:?}"),
                text.as_bytes().escape_ascii().to_string()
            );
            assert_eq!(state.hash_one(&bytes), state.hash_one(slice));
        }
        let [one, other] = ["one", "other"].map(|text| ShortBytes::<8>::new(text.as_bytes()));
        assert_ne!(state.hash_one(&one), state.hash_one(&other));
    }
}
