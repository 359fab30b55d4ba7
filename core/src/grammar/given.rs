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

/// The words behind an option, as many as it takes: none behind one that stands for itself.
pub type Values<'a> = &'a [&'a [u8]];

/// A field for each option; its values are unread until one of the functions below is called, because
/// the errors in them come after those of the words around them.
#[derive(Default)]
pub struct Given<'a> {
    pub px: Option<Values<'a>>,
    pub ex: Option<Values<'a>>,
    pub block: Option<Values<'a>>,
    pub limit: Option<Values<'a>>,
    pub permits: Option<Values<'a>>,
    pub waiters: Option<Values<'a>>,
    pub shared: Option<Values<'a>>,
    pub reentrant: Option<Values<'a>>,
    pub holds: Option<Values<'a>>,
    pub session: Option<Values<'a>>,
    pub keep: Option<Values<'a>>,
    pub notify: Option<Values<'a>>,
    pub nosession: Option<Values<'a>>,
    pub all: Option<Values<'a>>,
}

/// The value of an option that takes one, if the option is there.
fn value<'a>(option: Option<Values<'a>>) -> Option<&'a [u8]> {
    option.and_then(|values| values.first().copied())
}

impl Given<'_> {
    #[inline(always)]
    pub fn lease_ms(&self) -> Result<Option<u64>, Refusal> {
        let lease_ms = match (value(self.px), value(self.ex)) {
            (Some(ms), _) => within(ms, 1, MAX_SPAN_MS, Refusal::Lease)?,
            (None, Some(s)) => within(s, 1, MAX_SPAN_MS / 1000, Refusal::Lease)? * 1000,
            (None, None) => return Ok(None),
        };
        Ok(Some(lease_ms))
    }

    pub fn block_ms(&self) -> Result<u64, Refusal> {
        value(self.block).map_or(Ok(0), |ms| within(ms, 0, MAX_SPAN_MS, Refusal::Timeout))
    }

    pub fn keep_ms(&self) -> Result<Option<u64>, Refusal> {
        let keep = |ms| within(ms, 1, MAX_SPAN_MS, Refusal::Keep);
        value(self.keep).map(keep).transpose()
    }

    /// What is to be published of a place for these names. In a cluster the channel has to be in their slot.
    pub fn notice(&self, names: &Names, sharding: Sharding) -> Result<Option<Notice>, Refusal> {
        let Some([channel, message]) = self.notify else {
            return Ok(None);
        };
        let notice = Notice::new(channel, message).ok_or(Refusal::Message)?;
        let slot = slot::of_key(channel);
        let is_elsewhere = |name: &Name| slot::of_key(name.key()) != slot;
        match sharding {
            Sharding::BySlot if names.iter().any(is_elsewhere) => Err(Refusal::Channel),
            Sharding::BySlot | Sharding::None => Ok(Some(notice)),
        }
    }

    fn limit(&self) -> Result<u32, Refusal> {
        let Some(limit) = value(self.limit) else {
            return Ok(0);
        };
        let limit = within(limit, 1, u32::MAX.into(), Refusal::Limit)?;
        u32::try_from(limit).map_err(|_| Refusal::Limit)
    }

    fn permits(&self, limit: u32) -> Result<u32, Refusal> {
        let Some(permits) = value(self.permits) else {
            return Ok(1);
        };
        let permits = within(permits, 1, limit.into(), Refusal::Permits)?;
        u32::try_from(permits).map_err(|_| Refusal::Permits)
    }

    pub fn waiters_shown(&self) -> Result<u64, Refusal> {
        value(self.waiters).map_or(Ok(DEFAULT_WAITERS_SHOWN), |count| {
            within(count, 0, MAX_SPAN_MS, Refusal::Count)
        })
    }

    pub fn life(&self) -> Result<Life, Refusal> {
        Ok(match (self.session, self.nosession) {
            (Some(_), _) => Life::Session {
                keep_ms: self.keep_ms()?,
            },
            (None, Some(_)) => Life::Untied,
            (None, None) => Life::Lease,
        })
    }

    pub fn leave(&self) -> Result<Leave, Refusal> {
        match value(self.holds) {
            Some(most) => within(most, 0, MOST_HOLDS, Refusal::HoldsLeft).map(Leave::AllBut),
            None => Ok(self.all.map_or(Leave::One, |_| Leave::AllBut(0))),
        }
    }

    fn repeat(&self) -> Result<Repeat, Refusal> {
        match value(self.holds) {
            Some(holds) => within(holds, 1, MOST_HOLDS, Refusal::Holds).map(Repeat::Sets),
            None => Ok(self.reentrant.map_or(Repeat::Renews, |_| Repeat::Counts)),
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
            mode: self.shared.map_or(Mode::Exclusive, |_| Mode::Shared),
            limit,
            permits: self.permits(limit)?,
            lease_ms,
            repeat: self.repeat()?,
            life,
        })
    }
}
