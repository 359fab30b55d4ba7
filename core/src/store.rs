//! The server as the lock table sees it: keys, clocks, rights and limits.

use std::num::NonZeroU16;

use crate::effect::Effects;
use crate::state::waiter::{User, Waiter};
use crate::values::fence::Fences;
use crate::values::lock::Stored;
use crate::values::name::Name;
use crate::values::refusal::Refusal;

/// The state of a name's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState<L = Stored> {
    /// No key.
    Empty,
    /// A lock.
    Lock(L),
    /// A key of another type.
    OtherType,
}

/// The questions that the lock table asks the server.
pub trait Store {
    /// Returns the current state of a name's key. Called at most once per name and operation,
    /// except by the check in debug builds.
    fn read(&mut self, name: &Name) -> KeyState;

    /// Returns true if an operation on `own` can read the key of `name`. In a cluster both names
    /// must be in one slot, because newer servers look up a key in the slot of the running command.
    fn can_read(&mut self, name: &Name, own: &Name) -> bool;

    /// Returns true if a name without a key has none on another server either: this server owns the
    /// slot, and the slot is not migrating. The answer does not depend on the rights of the
    /// operation's client.
    fn is_here(&mut self, name: &Name) -> bool;

    /// Returns true if the key may have changed since the table last settled it.
    fn is_touched(&mut self, name: &Name) -> bool;

    /// Returns true if any key may have changed since the table last settled it.
    fn is_any_touched(&mut self) -> bool;

    /// Returns true if the timer is settling a name now because its key changed without an
    /// operation.
    fn is_settling(&mut self, name: &Name) -> bool;

    /// Returns the steady clock in ms.
    // perf: read only if something ends by this clock, which most operations do not need.
    fn steady_ms(&mut self) -> u64;

    /// Returns the user on whose behalf the operation runs.
    fn user(&mut self) -> User;

    /// Returns true if at least `count` replicas are online.
    fn has_replicas(&mut self, count: NonZeroU16) -> bool;

    /// Returns true if a waiter's user has the rights to the waiter's names now.
    fn may_be_granted(&mut self, waiter: &Waiter) -> bool;
}

/// The most waiters; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most blocked clients.
    pub max_waiters: usize,
    /// The refusal of a client beyond `max_waiters`, which names the limit.
    pub max_waiters_refusal: Refusal,
    /// The most waiters without a connection, each counted once for each of its names
    /// (`lock.max-tickets`).
    pub max_tickets: usize,
}

/// The environment of an operation: its clocks, limits and keys, and the receiver of its effects.
pub struct Environment<'a, 'n> {
    /// The wall clock now: microseconds since the Unix epoch.
    pub wall_us: u64,
    /// The source of new fences.
    pub fences: &'a Fences,
    /// The limits on waiters.
    // perf: a function, because most operations queue no waiter and need no limits.
    pub limits: &'a dyn Fn() -> Limits,
    /// The server's keys.
    pub store: &'a mut dyn Store,
    /// The effects of the operation. The server applies them in this order, before it acts on the
    /// [`crate::decision::Decision`].
    pub effects: &'a mut Effects<'n>,
}
