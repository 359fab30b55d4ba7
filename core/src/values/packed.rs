//! The form of a lock in the server's memory. Most locks are exclusive, held once, by a short token,
//! without a session and without data: these fit in 64 bytes.
//!
//! Such a lock also records that its key expires when its lease ends, if that is certain.

// perf: asking the server for the expiry costs another look-up if expiries are in a separate table.

use std::num::NonZeroU8;

use crate::values::data::Data;
use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// The longest token of a plain lock, in bytes.
const PLAIN_TOKEN_LEN: usize = 32;

/// A lock in its smallest form.
#[derive(Clone, Debug)]
pub struct Packed(Form);

#[derive(Clone, Debug)]
enum Form {
    Plain(Plain),
    Full(Box<Lock>),
}

/// An exclusive lock that is held once, without a session and without data, by a token of at most
/// [`PLAIN_TOKEN_LEN`] bytes.
#[derive(Clone, Debug)]
struct Plain {
    fence: u64,
    token: [u8; PLAIN_TOKEN_LEN],
    /// Fits until the year 10889.
    deadline_ms: [u8; 6],
    since_ms: [u8; 6],
    /// Fits, because the server counts its clients from 1.
    client_id: [u8; 6],
    /// Fits up to 34 years.
    lease_ms: [u8; 5],
    /// The token's length, with the bit [`EXPIRES_WITH_LEASE`].
    token_len: NonZeroU8,
}

/// The bit of the token's length that marks a key known to expire at the deadline. The bit is free
/// because lengths are at most [`PLAIN_TOKEN_LEN`].
const EXPIRES_WITH_LEASE: u8 = 1 << 7;

/// Returns the lowest `N` bytes of a number, if the number fits in them.
fn low_bytes<const N: usize>(number: u64) -> Option<[u8; N]> {
    let bytes = number.to_le_bytes();
    let (low, high) = bytes.split_first_chunk::<N>()?;
    high.iter().all(|byte| *byte == 0).then_some(*low)
}

fn number<const N: usize>(low: [u8; N]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(low).for_each(|(to, byte)| *to = byte);
    u64::from_le_bytes(bytes)
}

impl Plain {
    #[inline(always)]
    fn of(mode: Mode, own: &Holder) -> Option<Self> {
        let is_plain = mode == Mode::Exclusive
            && own.holds == 1
            && own.session == SessionId::NONE
            && own.data.is_empty();
        let (token, token_len) = own.token.padded()?;
        is_plain.then_some(Self {
            fence: own.fence,
            token: *token,
            deadline_ms: low_bytes(own.deadline_ms)?,
            since_ms: low_bytes(own.since_ms)?,
            client_id: low_bytes(own.client_id)?,
            lease_ms: low_bytes(own.lease_ms)?,
            token_len: NonZeroU8::new(token_len)?,
        })
    }

    #[inline]
    fn holder(&self) -> Option<Holder> {
        Some(Holder {
            token: Token::of_padded(&self.token, self.token_len.get() & !EXPIRES_WITH_LEASE)?,
            fence: self.fence,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: number(self.deadline_ms),
            lease_ms: number(self.lease_ms),
            since_ms: number(self.since_ms),
            client_id: number(self.client_id),
            session: SessionId::NONE,
            data: Data::NONE,
        })
    }
}

/// The expiry of a lock's key, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The key expires when the last lease ends.
    WithLease,
    /// The expiry is unknown, so the server has to be asked.
    Unknown,
}

impl Packed {
    /// Packs a lock.
    pub fn new(lock: Lock) -> Self {
        let plain = lock.holders().only();
        match plain.and_then(|own| Plain::of(lock.mode(), own)) {
            Some(plain) => Self(Form::Plain(plain)),
            None => Self(Form::Full(Box::new(lock))),
        }
    }

    /// Packs a lock with one holder.
    #[inline(always)]
    pub fn sole(mode: Mode, holder: &Holder) -> Self {
        match Plain::of(mode, holder) {
            Some(plain) => Self(Form::Plain(plain)),
            None => Self::full(mode, holder),
        }
    }

    #[inline(never)]
    fn full(mode: Mode, holder: &Holder) -> Self {
        Self(Form::Full(Box::new(Lock::sole(mode, holder.clone()))))
    }

    /// Returns what is known about the key's expiry; [`Expiry::Unknown`] for a new value.
    pub const fn expiry(&self) -> Expiry {
        match &self.0 {
            Form::Plain(plain) if plain.token_len.get() & EXPIRES_WITH_LEASE != 0 => {
                Expiry::WithLease
            }
            Form::Plain(_) | Form::Full(_) => Expiry::Unknown,
        }
    }

    /// Records the key's expiry. A lock that is not plain stays at [`Expiry::Unknown`].
    pub fn set_expiry(&mut self, expiry: Expiry) {
        if let Form::Plain(plain) = &mut self.0 {
            let len = plain.token_len.get() & !EXPIRES_WITH_LEASE;
            let bit = match expiry {
                Expiry::WithLease => EXPIRES_WITH_LEASE,
                Expiry::Unknown => 0,
            };
            plain.token_len = NonZeroU8::new(len | bit).unwrap_or(plain.token_len);
        }
    }

    /// Returns the lock. Several holders are shared with this value and not copied.
    #[inline(always)]
    pub fn unpack(&self) -> Lock {
        match &self.0 {
            Form::Plain(plain) => plain
                .holder()
                .map_or_else(Lock::free, |own| Lock::sole(Mode::Exclusive, own)),
            Form::Full(lock) => shared(lock),
        }
    }

    /// Returns the number of holders.
    pub fn holder_count(&self) -> usize {
        match &self.0 {
            Form::Plain(_) => 1,
            Form::Full(lock) => lock.holders().len(),
        }
    }

    /// Returns the bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Plain(_) => 0,
            Form::Full(lock) => size_of::<Lock>() + lock.heap_bytes(),
        }
    }
}

/// Returns a copy of a lock.
// perf: out of line, so that the code to unpack a plain lock is short.
#[inline(never)]
fn shared(lock: &Lock) -> Lock {
    lock.clone()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packed_lock_takes_64_bytes() {
        assert_eq!(size_of::<Packed>(), 64);
    }

    /// Generates numbers that mostly fit in `bits` bits.
    fn edges(bits: u32) -> impl Strategy<Value = u64> {
        let most = (1u64 << bits) - 1;
        prop_oneof![8 => 0..=most, 1 => Just(most), 1 => most..=most + 1, 1 => Just(u64::MAX)]
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            token in proptest::collection::vec(any::<u8>(), 1..40),
            fence: u64,
            holds in 1u64..3,
            times in (edges(48), edges(48), edges(40)),
            client_id in edges(48),
            session in 0u64..2,
            shared: bool,
            data in proptest::sample::select(vec![Data::NONE, Data::NONE, Data::new(b"why").unwrap()]),
        ) {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            let holder = Holder {
                token: Token::new(&token).unwrap(),
                fence,
                holds,
                limit: u32::from(shared),
                permits: 1,
                deadline_ms: times.0,
                since_ms: times.1,
                lease_ms: times.2,
                client_id,
                session: SessionId::numbered(session),
                data,
            };
            let lock = Lock::sole(mode, holder);
            let packed = Packed::new(lock.clone());
            prop_assert_eq!(&packed.unpack(), &lock);
            let short = times.0.max(times.1).max(client_id) < 1 << 48 && times.2 < 1 << 40;
            let plain = !shared && holds == 1 && session == 0 && token.len() <= 32 && short;
            let plain = plain && lock.holders().only().is_some_and(|own| own.data.is_empty());
            prop_assert_eq!(packed.heap_bytes() == 0, plain);

            let mut packed = packed;
            prop_assert_eq!(packed.expiry(), Expiry::Unknown);
            for known in [Expiry::WithLease, Expiry::WithLease, Expiry::Unknown] {
                packed.set_expiry(known);
                prop_assert_eq!(&packed.unpack(), &lock);
                prop_assert_eq!(packed.expiry(), if plain { known } else { Expiry::Unknown });
            }
        }
    }

    fn own(token: &[u8]) -> Holder {
        Holder {
            token: Token::new(token).unwrap(),
            fence: 7,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 9,
            lease_ms: 9,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        }
    }

    #[test]
    fn each_reason_alone_makes_a_lock_too_large_for_the_smallest_form() {
        let plain = own(b"t");
        assert_eq!(Packed::sole(Mode::Exclusive, &plain).heap_bytes(), 0);
        let with = |change: fn(&mut Holder)| {
            let mut own = plain.clone();
            change(&mut own);
            own
        };
        for (mode, own) in [
            (Mode::Shared, plain.clone()),
            (Mode::Exclusive, with(|own| own.holds = 2)),
            (
                Mode::Exclusive,
                with(|own| own.session = SessionId::numbered(1)),
            ),
            (
                Mode::Exclusive,
                with(|own| own.data = Data::new(b"why").unwrap()),
            ),
        ] {
            let packed = Packed::sole(mode, &own);
            assert!(packed.heap_bytes() > 0, "{mode:?} {own:?}");
            assert_eq!(packed.unpack(), Lock::sole(mode, own));
        }
    }

    #[test]
    fn a_free_lock_is_packed_too() {
        assert!(Packed::new(Lock::free()).unpack().is_free());
        assert_eq!(Packed::new(Lock::free()).holder_count(), 0);
    }

    #[test]
    fn it_counts_its_holders_and_the_bytes_of_a_lock_that_is_not_plain() {
        let own = |number: u8| own(&[number; 50]);
        assert_eq!(Packed::new(Lock::free()).holder_count(), 0);
        for count in [1, 2, 40] {
            let lock = Lock::held(Mode::Shared, (1..=count).map(own).collect()).unwrap();
            let packed = Packed::new(lock.clone());
            assert_eq!(packed.holder_count(), usize::from(count));
            assert_eq!(packed.heap_bytes(), size_of::<Lock>() + lock.heap_bytes());
        }
    }
}
