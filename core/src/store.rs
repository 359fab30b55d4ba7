//! What the lock table asks the server.

use crate::effect::Effects;
use crate::state::place::User;
use crate::state::queue::Waiter;
use crate::values::fence::Fences;
use crate::values::lock::Stored;
use crate::values::name::Name;

/// What a name holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// No key.
    Empty,
    /// A lock.
    Lock(Stored),
    /// A key of another type.
    OtherType,
}

/// What the table asks the server.
pub trait Store {
    /// What a name holds now. Called at most once a name and operation.
    fn read(&mut self, name: &Name) -> KeyState;

    /// Returns true if an operation that is about `own` can read the key of this name: in a cluster both have to
    /// be in one slot, because newer servers look for a key in the slot of the running command.
    fn can_read(&mut self, name: &Name, own: &Name) -> bool;

    /// Whether a name without a key has none at another server either: its slot is served here, and
    /// not on its way to or from another one. What the operation's client may do says nothing of that.
    fn is_here(&mut self, name: &Name) -> bool;

    /// Whether something happened at a name that the table was not told of yet.
    fn is_touched(&mut self, name: &Name) -> bool;

    /// Whether there is any such name.
    fn is_any_touched(&mut self) -> bool;

    /// Returns true if the timer settles a name just now because something happened there without an operation.
    fn is_settling(&mut self, name: &Name) -> bool;

    /// The steady clock in ms. Asked only where something ends by it: most operations need none.
    fn steady_ms(&mut self) -> u64;

    /// On whose behalf the operation is given.
    fn user(&mut self) -> User;

    /// Whether a waiter has the rights to what it waits for, as they are now.
    fn permits(&mut self, waiter: &Waiter) -> bool;
}

/// How many may wait; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// With their connection.
    pub max_waiters: usize,
    /// Without one.
    pub max_tickets: usize,
}

/// What the table is told with every operation, and whom it asks.
pub struct Environment<'a, 'n> {
    /// The wall clock now: microseconds since the Unix epoch.
    pub wall_us: u64,
    /// Numbers the grants.
    pub fences: &'a Fences,
    /// Tells how many may wait. Asked only where somebody is to: most operations need it not.
    pub limits: &'a dyn Fn() -> Limits,
    /// Where the locks are.
    pub store: &'a mut dyn Store,
    /// Takes what changes in the keyspace: to be applied in this order, and before anything else that
    /// was decided is done.
    pub effects: &'a mut Effects<'n>,
}
