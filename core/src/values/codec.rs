//! The bytes of a stored lock: encoding version 1, or 2 if a holder has data.
//!
//! ```text
//! version 1: mode u8 (0 exclusive, 1 shared) | count u32 | count holders | crc32 u32 of all before
//! holder:    token length u16 | token | fence u64 | holds u64 | limit u32 | deadline u64 |
//!            since u64 | lease u64 | permits u32
//!
//! version 2: 2 u8 | mode u8 | count u32 | count holders | crc32 u32 of all before
//! holder:    as in version 1 | data length u16 | data
//! ```
//!
//! 1. All numbers are little-endian. Times are in ms.
//! 2. `since` is 2^52 ms greater if the token has not claimed its grant yet.
//! 3. Every byte is checked here. The bytes may come from any client with the right to RESTORE, and
//!    the server's own checksum can be switched off.
//! 4. A lock has one form: version 2 without any data is refused.
//! 5. The first byte of version 2 is no mode, so a module that only knows version 1 refuses the
//!    bytes. The version that the server stores can't do this, because the server stores the same
//!    version next to every value of a type.

use crate::values::data::Data;
use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::time::MAX_DEADLINE_MS;
use crate::values::token::Token;
use Unreadable::{Malformed, UnknownVersion};

/// The encoding version that the server stores next to the bytes of every lock.
pub const ENCODING_VERSION: i32 = 1;

/// The encoding version of a lock with data, which its first byte gives.
pub const DATA_VERSION: u8 = 2;

/// The reason why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The bytes are not a lock.
    Malformed,
    /// The bytes are of a version that this build does not know.
    UnknownVersion(u8),
}

/// The length of the smallest holder, in bytes. Its token has one byte.
const MIN_HOLDER_LEN: usize = 2 + 1 + 8 + 8 + 4 + 8 + 8 + 8 + 4;

/// Encodes a lock that has a holder.
pub fn encode(lock: &Lock) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + lock.holders().len() * (MIN_HOLDER_LEN + 31));
    let has_data = lock.holders().iter().any(|own| !own.data.is_empty());
    if has_data {
        bytes.push(DATA_VERSION);
    }
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
        if has_data {
            let data = holder.data.as_bytes();
            bytes.extend((data.len() as u16).to_le_bytes());
            bytes.extend(data);
        }
    }
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Decodes the bytes that [`encode`] returns.
///
/// # Errors
/// [`Unreadable`] for all other bytes.
pub fn decode(bytes: &[u8]) -> Result<Lock, Unreadable> {
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Malformed)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(Malformed);
    }
    let (form, body) = match body {
        [DATA_VERSION, body @ ..] => (Form::WithData, body),
        [version, ..] if *version > DATA_VERSION => return Err(UnknownVersion(*version)),
        _ => (Form::Plain, body),
    };
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
        .map(|_| reader.holder(form))
        .collect::<Result<Vec<_>, _>>()?;
    let has_data = holders.iter().any(|own| !own.data.is_empty());
    if !reader.rest.is_empty() || has_data != (form == Form::WithData) {
        return Err(Malformed);
    }
    Lock::held(mode, holders).ok_or(Malformed)
}

/// The form of stored holders.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Encoding version 1.
    Plain,
    /// Encoding version 2.
    WithData,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Unreadable> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_le_bytes)
    }

    fn time_ms(&mut self) -> Result<u64, Unreadable> {
        let time_ms = self.u64()?;
        (time_ms <= MAX_DEADLINE_MS)
            .then_some(time_ms)
            .ok_or(Malformed)
    }

    fn holder(&mut self, form: Form) -> Result<Holder, Unreadable> {
        let len = self.u16()?;
        let token = Token::new(self.take(len.into())?).map_err(|_| Malformed)?;
        let (fence, holds, limit) = (self.u64()?, self.u64()?, self.u32()?);
        let deadline_ms = self.time_ms()?;
        let (since_ms, session) = Holder::read_since_ms(self.time_ms()?).ok_or(Malformed)?;
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
            data: match form {
                Form::Plain => Data::NONE,
                Form::WithData => self.data()?,
            },
        })
    }

    fn data(&mut self) -> Result<Data, Unreadable> {
        let len = self.u16()?;
        Data::new(self.take(len.into())?).map_err(|_| Malformed)
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
            data: Data::NONE,
        };
        let holders = vec![
            holder(1, b"one"),
            holder(2, &[0; 256]),
            holder(3, b"\xff\xfe"),
        ];
        Lock::held(Mode::Shared, holders).unwrap()
    }

    #[test]
    fn a_time_that_is_read_as_a_mark_without_its_own_mark_is_refused() {
        let mut holders: Vec<Holder> = sample().holders().iter().cloned().collect();
        holders[0].since_ms = (1 << 52) + 5;
        holders[0].session = SessionId::UNCLAIMED;
        let lock = Lock::held(Mode::Shared, holders).unwrap();
        assert_eq!(decode(&encode(&lock)), Err(Malformed));
        assert_eq!(
            Holder::read_since_ms((1 << 53) - 1),
            Some(((1 << 52) - 1, SessionId::UNCLAIMED))
        );
    }

    /// Returns the sample with data at some of its holders.
    fn with_data() -> Lock {
        let data: [&[u8]; 3] = [b"", b"who\r\n\0", &[7; 1024]];
        let plain = sample();
        let holders = plain.holders().iter().zip(data).map(|(own, data)| Holder {
            data: Data::new(data).unwrap(),
            ..own.clone()
        });
        Lock::held(Mode::Shared, holders.collect()).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        for lock in [sample(), with_data()] {
            assert_eq!(decode(&encode(&lock)), Ok(lock));
        }
    }

    /// An older module reads the bytes of a lock without data.
    #[test]
    fn a_lock_without_data_is_stored_as_in_version_1() {
        let own = Holder {
            token: Token::new(b"t").unwrap(),
            fence: 0x0807_0605_0403_0201,
            holds: 2,
            limit: 0,
            deadline_ms: 3,
            since_ms: 4,
            lease_ms: 5,
            permits: 1,
            client_id: 6,
            session: SessionId::NONE,
            data: Data::NONE,
        };
        let mut body = vec![0, 1, 0, 0, 0, 1, 0, b't', 1, 2, 3, 4, 5, 6, 7, 8];
        body.extend([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        body.extend([3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        body.extend([5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        let lock = Lock::sole(Mode::Exclusive, own.clone());
        assert_eq!(encode(&lock), sealed(body.clone()));

        let data = Data::new(b"why").unwrap();
        let lock = Lock::sole(Mode::Exclusive, Holder { data, ..own });
        body.insert(0, 2);
        body.extend([3, 0, b'w', b'h', b'y']);
        assert_eq!(encode(&lock), sealed(body));
    }

    #[test]
    fn version_2_without_data_or_with_too_much_is_refused() {
        let mut body = encode(&sample());
        body.truncate(body.len() - 4);
        body.insert(0, 2);
        assert_eq!(decode(&sealed(body)), Err(Malformed), "no length of data");
        let one = Lock::sole(
            Mode::Exclusive,
            Holder {
                data: Data::new(&[7; 1024]).unwrap(),
                limit: 0,
                permits: 1,
                ..sample().holders().last().cloned().unwrap()
            },
        );
        let mut good = encode(&one);
        good.truncate(good.len() - 4);
        assert_eq!(decode(&sealed(good.clone())), Ok(one));
        let before = good.len() - 1026;
        for (len, sound) in [(0, false), (1, true), (1024, true), (1025, false)] {
            let mut body = good[..before].to_vec();
            body.extend((len as u16).to_le_bytes());
            body.extend(vec![7; len]);
            assert_eq!(decode(&sealed(body)).is_ok(), sound, "{len} bytes");
        }
        for version in [3, 255] {
            let mut body = good.clone();
            body[0] = version;
            assert_eq!(decode(&sealed(body)), Err(UnknownVersion(version)));
        }
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
        for lock in [sample(), with_data()] {
            let bytes = encode(&lock);
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), Err(Malformed), "prefix of {len}");
            }
            for position in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[position / 8] ^= 1 << (position % 8);
                assert_eq!(decode(&flipped), Err(Malformed), "bit {position}");
            }
        }
    }

    /// Returns a body with a correct checksum, so that the checks after the checksum are reached.
    fn sealed(mut body: Vec<u8>) -> Vec<u8> {
        let sum = crc32fast::hash(&body);
        body.extend(sum.to_le_bytes());
        body
    }

    /// Asserts that the bytes are refused, or that they are the bytes of a sound lock.
    fn check_decoded(body: Vec<u8>) {
        let bytes = sealed(body);
        if let Ok(lock) = decode(&bytes) {
            let holders = lock.holders().iter().cloned().collect();
            assert!(Lock::held(lock.mode(), holders).is_some());
            assert_eq!(encode(&lock), bytes, "one form for each lock");
        }
    }

    proptest! {
        #[test]
        fn sealed_nonsense_is_refused_or_a_sound_lock(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            check_decoded(body);
        }

        #[test]
        fn sealed_changes_are_refused_or_a_sound_lock(
            position: proptest::sample::Index,
            byte: u8,
            lock in proptest::sample::select(vec![sample(), with_data()]),
        ) {
            let mut body = encode(&lock);
            body.truncate(body.len() - 4);
            let position = position.index(body.len());
            body[position] = byte;
            check_decoded(body);
        }
    }

    #[test]
    fn a_forged_count_allocates_nothing() {
        let mut body = vec![1];
        body.extend(u32::MAX.to_le_bytes());
        assert_eq!(decode(&sealed(body)), Err(Malformed));
    }

    #[test]
    fn a_holder_takes_51_bytes_at_least() {
        let least = [MIN_HOLDER_LEN];
        assert_eq!(least, [51]);
    }

    /// The smallest holder has a token of one byte.
    #[test]
    fn a_lock_whose_holders_are_the_smallest_is_read() {
        let own = |token: &[u8], fence| Holder {
            token: Token::new(token).unwrap(),
            fence,
            limit: 0,
            permits: 1,
            ..sample().holders().last().cloned().unwrap()
        };
        let lock = Lock::held(Mode::Shared, vec![own(b"a", 1), own(b"b", 2)]).unwrap();
        let bytes = encode(&lock);
        assert_eq!(bytes.len(), 1 + 4 + 2 * 51 + 4);
        assert_eq!(decode(&bytes), Ok(lock));
    }
}
