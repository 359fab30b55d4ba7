//! Locks whose keys the server expired before the leases had ended.
//!
//! Redis since 8.0 expires a key in the background already in the millisecond that it expires at,
//! while its commands, and leases, still count that millisecond. What is left of it belongs to the
//! holder.

use std::cell::{Cell, RefCell};

use foldhash::HashMap;
use redis_lock_core::hints::unlikely;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;

/// The locks that have lost their keys and go on until the end of a millisecond.
#[derive(Default)]
pub struct EarlyExpiries {
    /// True if there are any of these locks.
    // perf: every command that finds no key looks at this.
    any: Cell<bool>,
    locks: RefCell<HashMap<Name, Lock>>,
    /// The lock that left its key last, if its lease ends in this millisecond.
    leaving: RefCell<Option<(Name, Lock)>>,
}

impl EarlyExpiries {
    /// Records that a lock leaves its key, by whatever way, in the last millisecond of its lease.
    pub fn leave(&self, name: Name, lock: Lock) {
        self.leaving.replace(Some((name, lock)));
    }

    /// Keeps the lock that left its key last, because the server has expired that key. Returns
    /// false if it was another key that expired.
    pub fn expire(&self, name: &Name) -> bool {
        let leaving = self.leaving.take().filter(|(left, _)| left == name);
        let is_early = leaving.is_some();
        self.locks.borrow_mut().extend(leaving);
        self.any.set(self.any.get() || is_early);
        is_early
    }

    /// Returns true if a lock may be leaving its key.
    pub fn is_leaving(&self) -> bool {
        self.leaving.borrow().is_some()
    }

    /// Returns true if there is a lock that has lost its key.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        unlikely(self.any.get())
    }

    /// Returns the lock of a name without a key, if its lease has not ended at `now_ms`.
    #[inline(never)]
    pub fn find(&self, name: &Name, now_ms: u64) -> Option<Lock> {
        let locks = self.locks.borrow();
        locks
            .get(name)
            .filter(|lock| ends_in(lock, now_ms))
            .cloned()
    }

    /// Forgets the lock of a name, because it was changed or released. Returns false if there was
    /// none.
    #[inline(never)]
    pub fn forget(&self, name: &Name) -> bool {
        self.locks.borrow_mut().remove(name).is_some()
    }

    /// Forgets the locks whose leases have ended at `now_ms`, and returns their names.
    #[inline(never)]
    pub fn take_ended(&self, now_ms: u64) -> Vec<Name> {
        let mut locks = self.locks.borrow_mut();
        let ended = locks.extract_if(|_, lock| !ends_in(lock, now_ms));
        let names = ended.map(|(name, _)| name).collect();
        self.any.set(!locks.is_empty());
        names
    }

    /// Forgets all locks.
    pub fn clear(&self) {
        self.any.set(false);
        self.locks.take();
    }
}

/// Returns true if a lock's lease ends in this millisecond. The clock may have been set back since
/// the lock lost its key, so a later deadline doesn't count.
fn ends_in(lock: &Lock, now_ms: u64) -> bool {
    lock.latest_deadline_ms() == Some(now_ms)
}
