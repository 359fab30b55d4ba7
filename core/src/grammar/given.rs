//! The options that a command was given, and what their values mean.

use crate::grammar::numbers::within;
use crate::operation::Leave;
use crate::values::holder::Mode;
use crate::values::moment::MAX_SPAN_MS;
use crate::values::name::{Name, Names};
use crate::values::notice::Notice;
use crate::values::refusal::Refusal;
use crate::values::request::{Life, Repeat, Request};
use crate::values::slot::{self, Sharding};
use crate::values::token::Token;

/// How many of the queue LOCK.INFO shows when it isn't told.
pub const DEFAULT_WAITERS_SHOWN: u64 = 10;

/// The most holds that a client may name.
const MOST_HOLDS: u64 = u32::MAX as u64;

/// Where the values of an option begin among the words, behind the option itself; 0: it is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValuesAt(pub u8);

impl ValuesAt {
    /// Whether the option is given.
    pub const fn is_given(self) -> bool {
        self.0 != 0
    }
}

/// A field for each option; its values are unread until one of the functions below is called, because
/// the errors in them come after those of the words around them.
#[derive(Default)]
pub struct Given<'a> {
    /// Those behind the keys and the token.
    pub words: &'a [&'a [u8]],
    pub px: ValuesAt,
    pub ex: ValuesAt,
    pub block: ValuesAt,
    pub limit: ValuesAt,
    pub permits: ValuesAt,
    pub waiters: ValuesAt,
    pub shared: ValuesAt,
    pub reentrant: ValuesAt,
    pub holds: ValuesAt,
    pub session: ValuesAt,
    pub keep: ValuesAt,
    pub notify: ValuesAt,
    pub nosession: ValuesAt,
    pub all: ValuesAt,
}

/// A number from 1 on that 32 bits hold.
#[inline(never)]
fn within_32_bits(word: &[u8], most: u32, otherwise: Refusal) -> Result<u32, Refusal> {
    let number = within(word, 1, most.into(), otherwise)?;
    u32::try_from(number).map_err(|_| otherwise)
}

#[inline(never)]
fn ms_of(seconds: &[u8]) -> Result<u64, Refusal> {
    let seconds = within(seconds, 1, MAX_SPAN_MS / 1000, Refusal::Lease)?;
    Ok(seconds * 1000)
}

#[inline(never)]
fn all_but(most: &[u8]) -> Result<Leave, Refusal> {
    within(most, 0, MOST_HOLDS, Refusal::HoldsLeft).map(Leave::AllBut)
}

#[inline(never)]
fn sets(holds: &[u8]) -> Result<Repeat, Refusal> {
    within(holds, 1, MOST_HOLDS, Refusal::Holds).map(Repeat::Sets)
}

impl<'a> Given<'a> {
    /// The value of an option that takes one, if the option is there.
    #[inline(always)]
    fn value(&self, option: ValuesAt) -> Option<&'a [u8]> {
        if option.is_given() {
            self.words.get(usize::from(option.0)).copied()
        } else {
            None
        }
    }

    #[inline(always)]
    pub fn lease_ms(&self) -> Result<Option<u64>, Refusal> {
        match (self.value(self.px), self.value(self.ex)) {
            (Some(ms), _) => within(ms, 1, MAX_SPAN_MS, Refusal::Lease).map(Some),
            (None, Some(seconds)) => ms_of(seconds).map(Some),
            (None, None) => Ok(None),
        }
    }

    pub fn block_ms(&self) -> Result<u64, Refusal> {
        self.value(self.block)
            .map_or(Ok(0), |ms| within(ms, 0, MAX_SPAN_MS, Refusal::Timeout))
    }

    pub fn keep_ms(&self) -> Result<Option<u64>, Refusal> {
        let keep = |ms| within(ms, 1, MAX_SPAN_MS, Refusal::Keep);
        self.value(self.keep).map(keep).transpose()
    }

    /// What is to be published of a place for these names. In a cluster the channel has to be in their slot.
    pub fn notice(&self, names: &Names, sharding: Sharding) -> Result<Option<Notice>, Refusal> {
        if !self.notify.is_given() {
            return Ok(None);
        }
        let Some([channel, message, ..]) = self.words.get(usize::from(self.notify.0)..) else {
            return Ok(None);
        };
        let notice = Notice::new(channel, message)?;
        let slot = slot::of_key(channel);
        let is_elsewhere = |name: &Name| slot::of_key(name.key()) != slot;
        match sharding {
            Sharding::BySlot if names.iter().any(is_elsewhere) => Err(Refusal::Channel),
            Sharding::BySlot | Sharding::None => Ok(Some(notice)),
        }
    }

    #[inline(always)]
    fn limit(&self) -> Result<u32, Refusal> {
        match self.value(self.limit) {
            None => Ok(0),
            Some(limit) => within_32_bits(limit, u32::MAX, Refusal::Limit),
        }
    }

    #[inline(always)]
    fn permits(&self, limit: u32) -> Result<u32, Refusal> {
        match self.value(self.permits) {
            None => Ok(1),
            Some(permits) => within_32_bits(permits, limit, Refusal::Permits),
        }
    }

    pub fn waiters_shown(&self) -> Result<u64, Refusal> {
        self.value(self.waiters)
            .map_or(Ok(DEFAULT_WAITERS_SHOWN), |count| {
                within(count, 0, MAX_SPAN_MS, Refusal::Count)
            })
    }

    #[inline(always)]
    pub fn life(&self) -> Result<Life, Refusal> {
        match (self.session.is_given(), self.nosession.is_given()) {
            (true, _) => self.session_life(),
            (false, true) => Ok(Life::Untied),
            (false, false) => Ok(Life::Lease),
        }
    }

    #[inline(never)]
    fn session_life(&self) -> Result<Life, Refusal> {
        let keep_ms = self.keep_ms()?;
        Ok(Life::Session { keep_ms })
    }

    #[inline(always)]
    pub fn leave(&self) -> Result<Leave, Refusal> {
        match self.value(self.holds) {
            Some(most) => all_but(most),
            None if self.all.is_given() => Ok(Leave::AllBut(0)),
            None => Ok(Leave::One),
        }
    }

    #[inline(always)]
    fn mode(&self) -> Mode {
        if self.shared.is_given() {
            Mode::Shared
        } else {
            Mode::Exclusive
        }
    }

    #[inline(always)]
    fn repeat(&self) -> Result<Repeat, Refusal> {
        match self.value(self.holds) {
            Some(holds) => sets(holds),
            None if self.reentrant.is_given() => Ok(Repeat::Counts),
            None => Ok(Repeat::Renews),
        }
    }

    /// What this token wants, for a lease that is read already: its errors go before those of the other
    /// numbers, and others go between them.
    #[inline(always)]
    pub fn request(&self, token: Token, lease_ms: u64) -> Result<Request, Refusal> {
        let life = self.life()?;
        let limit = self.limit()?;
        Ok(Request {
            token,
            mode: self.mode(),
            limit,
            permits: self.permits(limit)?,
            lease_ms,
            repeat: self.repeat()?,
            life,
        })
    }
}
