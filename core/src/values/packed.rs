//! How a lock lies in the server's memory: most of them are held once, by a short token, for no
//! session, and fit into 64 bytes.

use std::num::NonZeroU8;

use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// The longest token that a plain lock has room for.
const PLAIN_TOKEN_LEN: usize = 32;

/// A lock, as small as it can be.
#[derive(Clone, Debug)]
pub struct Packed(Form);

#[derive(Clone, Debug)]
enum Form {
    Plain(Plain),
    Full(Box<Lock>),
}

/// An exclusive lock that is held once, without a session, by a token of at most
/// [`PLAIN_TOKEN_LEN`] bytes.
#[derive(Clone, Debug)]
struct Plain {
    fence: u64,
    deadline_ms: u64,
    since_ms: u64,
    token: [u8; PLAIN_TOKEN_LEN],
    /// The lowest six bytes: the server counts its clients from 1.
    client_id: [u8; 6],
    token_len: NonZeroU8,
}

impl Plain {
    fn of(mode: Mode, own: &Holder) -> Option<Self> {
        let is_plain = mode == Mode::Exclusive && own.holds == 1 && own.session == SessionId::NONE;
        let bytes = own.token.as_bytes();
        let mut token = [0; PLAIN_TOKEN_LEN];
        token.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let (client_id, above) = own
            .client_id
            .to_le_bytes()
            .split_first_chunk::<6>()
            .map(|(low, high)| (*low, high.iter().any(|byte| *byte != 0)))?;
        (is_plain && !above).then_some(Self {
            fence: own.fence,
            deadline_ms: own.deadline_ms,
            since_ms: own.since_ms,
            token,
            client_id,
            token_len: NonZeroU8::new(u8::try_from(bytes.len()).ok()?)?,
        })
    }

    fn holder(&self) -> Option<Holder> {
        let [a, b, c, d, e, f] = self.client_id;
        Some(Holder {
            token: Token::new(self.token.get(..self.token_len.get().into())?).ok()?,
            fence: self.fence,
            holds: 1,
            limit: 0,
            deadline_ms: self.deadline_ms,
            since_ms: self.since_ms,
            client_id: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            session: SessionId::NONE,
        })
    }
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
    pub fn sole(mode: Mode, holder: &Holder) -> Self {
        match Plain::of(mode, holder) {
            Some(plain) => Self(Form::Plain(plain)),
            None => Self(Form::Full(Box::new(Lock::sole(mode, holder.clone())))),
        }
    }

    /// The lock. Of many holders they are shared, not copied.
    pub fn unpack(&self) -> Lock {
        match &self.0 {
            Form::Plain(plain) => plain
                .holder()
                .map_or_else(Lock::free, |own| Lock::sole(Mode::Exclusive, own)),
            Form::Full(lock) => Lock::clone(lock),
        }
    }

    /// How many hold the lock.
    pub fn holder_count(&self) -> usize {
        match &self.0 {
            Form::Plain(_) => 1,
            Form::Full(lock) => lock.holders().len(),
        }
    }

    /// Bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Plain(_) => 0,
            Form::Full(lock) => size_of::<Lock>() + lock.heap_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packed_lock_takes_64_bytes() {
        assert_eq!(size_of::<Packed>(), 64);
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            token in proptest::collection::vec(any::<u8>(), 1..40),
            fence: u64,
            holds in 1u64..3,
            times: (u64, u64),
            client_id in prop_oneof![0u64..9, (1u64 << 48) - 1..=1 << 48, Just(u64::MAX)],
            session in 0u64..2,
            shared: bool,
        ) {
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            let holder = Holder {
                token: Token::new(&token).unwrap(),
                fence,
                holds,
                limit: u32::from(shared),
                deadline_ms: times.0,
                since_ms: times.1,
                client_id,
                session: SessionId::numbered(session),
            };
            let lock = Lock::sole(mode, holder);
            let packed = Packed::new(lock.clone());
            prop_assert_eq!(packed.unpack(), lock);
            let plain = !shared && holds == 1 && session == 0 && token.len() <= 32 && client_id < 1 << 48;
            prop_assert_eq!(packed.heap_bytes() == 0, plain);
        }
    }

    #[test]
    fn a_free_lock_is_packed_too() {
        assert!(Packed::new(Lock::free()).unpack().is_free());
        assert_eq!(Packed::new(Lock::free()).holder_count(), 0);
    }
}
