//! The options given to a command, and the meaning of their values.

use std::num::NonZeroU16;

use crate::grammar::context::ParseContext;
use crate::grammar::numbers::within;
use crate::operation::{LeaseRule, ReleaseCount};
use crate::values::data::Data;
use crate::values::holder::Mode;
use crate::values::name::{Name, Names};
use crate::values::notification::Notification;
use crate::values::refusal::Refusal;
use crate::values::request::{LeaseKind, Reentry, Replicas, Request};
use crate::values::slot::{self, Sharding};
use crate::values::time::MAX_SPAN_MS;
use crate::values::token::Token;

/// The number of waiters that LOCK.INFO shows by default.
pub const DEFAULT_WAITERS_SHOWN: u64 = 10;

/// The most holds that a RELEASE may leave.
const MOST_HOLDS: u64 = u32::MAX as u64;

/// The number of keys that LOCK.HOT shows by default.
const DEFAULT_HOT_KEYS: u64 = 16;

/// The most keys that LOCK.HOT shows.
const MOST_HOT_KEYS: u64 = 128;

/// The most replicas that a client may ask for.
const MOST_REPLICAS: u64 = 1000;

/// The longest LEAVE in ms: a day.
const MOST_LEAVE_MS: u64 = 24 * 60 * 60 * 1000;

/// The greatest fence that a client may ask for: every client language can hold it.
const MOST_FENCE: u64 = (1 << 53) - 1;

/// The index among the words at which the values of an option begin, behind the option itself; 0:
/// the option is not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArgIndex(pub u8);

impl ArgIndex {
    /// Returns true if the option is given.
    pub const fn is_given(self) -> bool {
        self.0 != 0
    }
}

/// The options of a command, with one field for each option.
///
/// Values are not read until a function below is called, because their errors come after those of
/// the words around them.
#[derive(Default)]
pub struct Options<'a> {
    /// The words behind the keys and the token.
    pub words: &'a [&'a [u8]],
    pub px: ArgIndex,
    pub ex: ArgIndex,
    pub block: ArgIndex,
    pub limit: ArgIndex,
    pub permits: ArgIndex,
    pub waiters: ArgIndex,
    pub shared: ArgIndex,
    pub reentrant: ArgIndex,
    pub holds: ArgIndex,
    pub session: ArgIndex,
    pub keep: ArgIndex,
    pub notify: ArgIndex,
    pub nosession: ArgIndex,
    pub all: ArgIndex,
    pub data: ArgIndex,
    pub replicas: ArgIndex,
    pub within: ArgIndex,
    pub fence: ArgIndex,
    pub gt: ArgIndex,
    pub leave: ArgIndex,
    pub count: ArgIndex,
}

/// Parses a number from 1 to `most`.
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
fn all_but(most: &[u8]) -> Result<ReleaseCount, Refusal> {
    within(most, 0, MOST_HOLDS, Refusal::HoldsLeft).map(ReleaseCount::AllBut)
}

#[inline(never)]
fn sets(holds: &[u8]) -> Result<Reentry, Refusal> {
    within_32_bits(holds, u32::MAX, Refusal::Holds).map(Reentry::Sets)
}

#[inline(never)]
fn credible_fence(fence: &[u8], context: &ParseContext<'_>) -> Result<u64, Refusal> {
    let fence = within(fence, 1, MOST_FENCE, Refusal::Fence)?;
    let is_credible = (context.is_credible_fence)(fence);
    is_credible.then_some(fence).ok_or(Refusal::Fence)
}

impl<'a> Options<'a> {
    /// Returns the value of an option that takes one, if the option is given.
    #[inline(always)]
    fn value(&self, option: ArgIndex) -> Option<&'a [u8]> {
        if option.is_given() {
            self.words.get(usize::from(option.0)).copied()
        } else {
            None
        }
    }

    /// Returns the lease in ms; `None` if neither PX nor EX is given.
    ///
    /// # Errors
    /// [`Refusal::Lease`] for anything but 1 to [`MAX_SPAN_MS`].
    #[inline(always)]
    pub fn lease_ms(&self) -> Result<Option<u64>, Refusal> {
        match (self.value(self.px), self.value(self.ex)) {
            (Some(ms), _) => within(ms, 1, MAX_SPAN_MS, Refusal::Lease).map(Some),
            (None, Some(seconds)) => ms_of(seconds).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns BLOCK in ms; 0, the default: no limit.
    ///
    /// # Errors
    /// [`Refusal::Timeout`] for anything but 0 to [`MAX_SPAN_MS`].
    pub fn block_ms(&self) -> Result<u64, Refusal> {
        self.value(self.block)
            .map_or(Ok(0), |ms| within(ms, 0, MAX_SPAN_MS, Refusal::Timeout))
    }

    /// Returns KEEP in ms, if it is given.
    ///
    /// # Errors
    /// [`Refusal::Keep`] for anything but 1 to [`MAX_SPAN_MS`].
    pub fn keep_ms(&self) -> Result<Option<u64>, Refusal> {
        let keep = |ms| within(ms, 1, MAX_SPAN_MS, Refusal::Keep);
        self.value(self.keep).map(keep).transpose()
    }

    /// Returns the notification for a place at these names, if one is asked for.
    ///
    /// # Errors
    /// [`Refusal::Channel`] if the channel of a cluster isn't in the slot of the names, and the errors
    /// of [`Notification::new`].
    pub fn notification(
        &self,
        names: &Names,
        sharding: Sharding,
    ) -> Result<Option<Notification>, Refusal> {
        if !self.notify.is_given() {
            return Ok(None);
        }
        let Some([channel, message, ..]) = self.words.get(usize::from(self.notify.0)..) else {
            return Ok(None);
        };
        let notification = Notification::new(channel, message)?;
        let slot = slot::of_key(channel);
        let is_elsewhere = |name: &Name| slot::of_key(name.key()) != slot;
        match sharding {
            Sharding::BySlot if names.iter().any(is_elsewhere) => Err(Refusal::Channel),
            Sharding::BySlot | Sharding::None => Ok(Some(notification)),
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

    /// Returns the number of waiters to show.
    ///
    /// # Errors
    /// [`Refusal::Count`] for anything but 0 to [`MAX_SPAN_MS`].
    pub fn waiters_shown(&self) -> Result<u64, Refusal> {
        self.value(self.waiters)
            .map_or(Ok(DEFAULT_WAITERS_SHOWN), |count| {
                within(count, 0, MAX_SPAN_MS, Refusal::Count)
            })
    }

    /// Returns the tie to a connection that SESSION or NOSESSION asks for.
    ///
    /// # Errors
    /// The errors of [`Options::keep_ms`].
    #[inline(always)]
    pub fn lease_kind(&self) -> Result<LeaseKind, Refusal> {
        match (self.session.is_given(), self.nosession.is_given()) {
            (true, _) => self.session_lease_kind(),
            (false, true) => Ok(LeaseKind::Untied),
            (false, false) => Ok(LeaseKind::Lease),
        }
    }

    #[inline(never)]
    fn session_lease_kind(&self) -> Result<LeaseKind, Refusal> {
        let keep_ms = self.keep_ms()?;
        Ok(LeaseKind::Session { keep_ms })
    }

    /// Returns the number of holds to release.
    ///
    /// # Errors
    /// The errors of [`all_but`].
    #[inline(always)]
    pub fn release_count(&self) -> Result<ReleaseCount, Refusal> {
        match self.value(self.holds) {
            Some(most) => all_but(most),
            None if self.all.is_given() => Ok(ReleaseCount::AllBut(0)),
            None => Ok(ReleaseCount::One),
        }
    }

    /// Returns LEAVE in ms, if it is given.
    ///
    /// # Errors
    /// [`Refusal::Leave`] for anything but 1 to [`MOST_LEAVE_MS`].
    #[inline(always)]
    pub fn leave_ms(&self) -> Result<Option<u64>, Refusal> {
        let leave = |ms| within(ms, 1, MOST_LEAVE_MS, Refusal::Leave);
        self.value(self.leave).map(leave).transpose()
    }

    /// Returns the rule by which the lease is set.
    #[inline(always)]
    pub fn lease_rule(&self) -> LeaseRule {
        if self.gt.is_given() {
            LeaseRule::Lengthen
        } else {
            LeaseRule::Set
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
    fn reentry(&self) -> Result<Reentry, Refusal> {
        match self.value(self.holds) {
            Some(holds) => sets(holds),
            None if self.reentrant.is_given() => Ok(Reentry::Counts),
            None => Ok(Reentry::Renews),
        }
    }

    /// Returns DATA, if it is given.
    ///
    /// # Errors
    /// The errors of [`Data::new`].
    #[inline(always)]
    pub fn data(&self) -> Result<Option<Data>, Refusal> {
        self.value(self.data).map(Data::new).transpose()
    }

    /// Returns REPLICAS and its WITHIN, if REPLICAS is given.
    ///
    /// # Errors
    /// [`Refusal::Replicas`] or [`Refusal::Within`] for a number out of its range.
    #[inline(always)]
    pub fn replicas(&self, default_within_ms: u64) -> Result<Option<Replicas>, Refusal> {
        match self.value(self.replicas) {
            None => Ok(None),
            Some(count) => self.replicas_of(count, default_within_ms).map(Some),
        }
    }

    #[inline(never)]
    fn replicas_of(&self, count: &[u8], default_within_ms: u64) -> Result<Replicas, Refusal> {
        let count = within(count, 1, MOST_REPLICAS, Refusal::Replicas)?;
        let count = u16::try_from(count).ok().and_then(NonZeroU16::new);
        let count = count.ok_or(Refusal::Replicas)?;
        let within_ms = self
            .value(self.within)
            .map_or(Ok(default_within_ms), |ms| {
                within(ms, 1, MAX_SPAN_MS, Refusal::Within)
            })?;
        Ok(Replicas { count, within_ms })
    }

    /// Returns FENCE, if it is given.
    ///
    /// # Errors
    /// [`Refusal::Fence`] for a number out of range, or one that isn't credible in this context.
    #[inline(always)]
    pub fn fence(&self, context: &ParseContext<'_>) -> Result<Option<u64>, Refusal> {
        let fence = |fence| credible_fence(fence, context);
        self.value(self.fence).map(fence).transpose()
    }

    /// Returns the number of keys to show.
    ///
    /// # Errors
    /// [`Refusal::HotCount`] for anything but 1 to [`MOST_HOT_KEYS`].
    pub fn hot_keys_shown(&self) -> Result<u64, Refusal> {
        self.value(self.count)
            .map_or(Ok(DEFAULT_HOT_KEYS), |count| {
                within(count, 1, MOST_HOT_KEYS, Refusal::HotCount)
            })
    }

    /// Returns the request of this token, and the replicas that must have the grant.
    ///
    /// The caller has read the lease before, because its errors precede those of the other numbers.
    /// The errors of the timeout come between them.
    ///
    /// # Errors
    /// The errors of the options of a request, in the order in which they are read here.
    // perf: all values are read first, so the request is built in its place and never copied.
    #[inline(always)]
    pub fn request(
        &self,
        token: Token,
        lease_ms: u64,
        default_within_ms: u64,
    ) -> Result<(Request, Option<Replicas>), Refusal> {
        let lease_kind = self.lease_kind()?;
        let limit = self.limit()?;
        let permits = self.permits(limit)?;
        let reentry = self.reentry()?;
        let data = self.data()?;
        let replicas = self.replicas(default_within_ms)?;
        let request = Request {
            token,
            mode: self.mode(),
            limit,
            permits,
            lease_ms,
            reentry,
            lease_kind,
            data,
        };
        Ok((request, replicas))
    }
}
