//! The bytes of a stored lock: encoding version 1.
//!
//! ```text
//! mode u8 (0 exclusive, 1 shared) | count u32 | count holders | crc32 u32 of all before
//! holder: token length u16 | token | fence u64 | holds u64 | limit u32 | deadline u64 |
//!         since u64 | lease u64 | permits u32
//! ```
//!
//! 1. All numbers are little-endian. Times are in ms.
//! 2. `since` is 2^52 ms greater if the token has not claimed its grant yet.
//! 3. Every byte is checked here. The bytes may come from any client with the right to RESTORE, and
//!    the server's own checksum can be switched off.

use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::time::MAX_DEADLINE_MS;
use crate::values::token::Token;

/// The encoding version, which the server stores next to the bytes.
pub const ENCODING_VERSION: i32 = 1;

/// The error for bytes that are not a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The length of the smallest holder, in bytes. Its token has one byte.
const MIN_HOLDER_LEN: usize = 2 + 1 + 8 + 8 + 4 + 8 + 8 + 8 + 4;

/// Encodes a lock that has a holder.
pub fn encode(lock: &Lock) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + lock.holders().len() * (MIN_HOLDER_LEN + 31));
    bytes.push(match lock.mode() {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
    });
    // The count fits: 2^32 holders are more than the memory of a server has room for.
    bytes.extend((lock.holders().len() as u32).to_le_bytes());
    for holder in lock.holders().iter() {
        let token = holder.token.as_bytes();
        bytes.extend((token.len() as u16).to_le_bytes());
        bytes.extend(token);
        bytes.extend(holder.fence.to_le_bytes());
        bytes.extend(holder.holds.to_le_bytes());
        bytes.extend(holder.limit.to_le_bytes());
        bytes.extend(holder.deadline_ms.to_le_bytes());
        bytes.extend(holder.stored_since_ms().to_le_bytes());
        bytes.extend(holder.lease_ms.to_le_bytes());
        bytes.extend(holder.permits.to_le_bytes());
    }
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Decodes the bytes that [`encode`] returns.
///
/// # Errors
/// [`Malformed`] for all other bytes.
pub fn decode(bytes: &[u8]) -> Result<Lock, Malformed> {
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Malformed)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(Malformed);
    }
    let mut reader = Reader { rest: body };
    let mode = match reader.u8()? {
        0 => Mode::Exclusive,
        1 => Mode::Shared,
        _ => return Err(Malformed),
    };
    let count = reader.u32()? as usize;
    // A forged count must not cause an allocation.
    if count > reader.rest.len() / MIN_HOLDER_LEN {
        return Err(Malformed);
    }
    let holders = (0..count)
        .map(|_| reader.holder())
        .collect::<Result<Vec<_>, _>>()?;
    if !reader.rest.is_empty() {
        return Err(Malformed);
    }
    Lock::held(mode, holders).ok_or(Malformed)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn time_ms(&mut self) -> Result<u64, Malformed> {
        let time_ms = self.u64()?;
        (time_ms <= MAX_DEADLINE_MS)
            .then_some(time_ms)
            .ok_or(Malformed)
    }

    fn holder(&mut self) -> Result<Holder, Malformed> {
        let len = self.u16()?;
        let token = Token::new(self.take(len.into())?).map_err(|_| Malformed)?;
        let (fence, holds, limit) = (self.u64()?, self.u64()?, self.u32()?);
        let deadline_ms = self.time_ms()?;
        let (since_ms, session) = Holder::read_since_ms(self.time_ms()?);
        Ok(Holder {
            token,
            fence,
            holds,
            limit,
            deadline_ms,
            since_ms,
            lease_ms: self.u64()?,
            permits: self.u32()?,
            client_id: 0,
            session,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::values::session_id::SessionId;

    fn sample() -> Lock {
        let holder = |n: u8, token: &[u8]| Holder {
            token: Token::new(token).unwrap(),
            fence: 1_700_000_000_000_000 + u64::from(n),
            holds: n.into(),
            limit: 9,
            deadline_ms: 1_700_000_000_000,
            since_ms: 1_600_000_000_000,
            lease_ms: 60_000,
            permits: n.into(),
            client_id: 0,
            session: SessionId::NONE,
        };
        let holders = vec![
            holder(1, b"one"),
            holder(2, &[0; 256]),
            holder(3, b"\xff\xfe"),
        ];
        Lock::held(Mode::Shared, holders).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(decode(&encode(&sample())), Ok(sample()));
    }

    #[test]
    fn an_unclaimed_grant_is_read_as_such() {
        let own = sample().holders().first_to_end().cloned().unwrap();
        let session = SessionId::UNCLAIMED;
        let lock = Lock::sole(Mode::Shared, Holder { session, ..own });
        assert_eq!(decode(&encode(&lock)), Ok(lock));
    }

    #[test]
    fn every_prefix_and_every_flipped_bit_is_refused() {
        let bytes = encode(&sample());
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), Err(Malformed), "prefix of {len}");
        }
        for position in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[position / 8] ^= 1 << (position % 8);
            assert_eq!(decode(&flipped), Err(Malformed), "bit {position}");
        }
    }

    /// Returns a body with a correct checksum, so that the checks after the checksum are reached.
    fn sealed(mut body: Vec<u8>) -> Vec<u8> {
        let sum = crc32fast::hash(&body);
        body.extend(sum.to_le_bytes());
        body
    }

    proptest! {
        #[test]
        fn sealed_nonsense_is_refused_or_a_sound_lock(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(lock) = decode(&sealed(body)) {
                prop_assert!(Lock::held(lock.mode(), lock.holders().iter().cloned().collect()).is_some());
            }
        }

        #[test]
        fn sealed_changes_are_refused_or_a_sound_lock(position in 0usize..400, byte: u8) {
            let mut body = encode(&sample());
            body.truncate(body.len() - 4);
            let position = position % body.len();
            body[position] = byte;
            if let Ok(lock) = decode(&sealed(body)) {
                prop_assert!(Lock::held(lock.mode(), lock.holders().iter().cloned().collect()).is_some());
            }
        }
    }

    #[test]
    fn a_forged_count_allocates_nothing() {
        let mut body = vec![1];
        body.extend(u32::MAX.to_le_bytes());
        assert_eq!(decode(&sealed(body)), Err(Malformed));
    }
}
