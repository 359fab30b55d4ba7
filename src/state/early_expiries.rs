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
    /// The deadline of all these locks on the wall clock, in ms; 0: there are none.
    deadline_ms: Cell<u64>,
    locks: RefCell<HashMap<Name, Lock>>,
    /// The lock that left its key last, if its lease ends in this millisecond.
    leaving: RefCell<Option<(Name, Lock)>>,
}

impl EarlyExpiries {
    /// Records that a lock leaves its key, by whatever way, in the last millisecond of its lease.
    pub fn leave(&self, name: Name, lock: Lock) {
        self.leaving.replace(Some((name, lock)));
    }

    /// Keeps the lock that left its key last, because the server has expired that key.
    pub fn expire(&self, name: &Name) {
        let Some((name, lock)) = self.leaving.take().filter(|(left, _)| left == name) else {
            return;
        };
        let Some(deadline_ms) = lock.latest_deadline_ms() else {
            return;
        };
        if self.deadline_ms.replace(deadline_ms) != deadline_ms {
            self.locks.borrow_mut().clear();
        }
        self.locks.borrow_mut().insert(name, lock);
    }

    /// Returns true if a lock may be leaving its key.
    pub fn is_leaving(&self) -> bool {
        self.leaving.borrow().is_some()
    }

    /// Returns true if there may be a lock that has lost its key.
    #[inline(always)]
    pub fn is_any(&self) -> bool {
        unlikely(self.deadline_ms.get() != 0)
    }

    /// Returns the lock of a name without a key, if its lease has not ended at `now_ms`.
    #[inline(never)]
    pub fn find(&self, name: &Name, now_ms: u64) -> Option<Lock> {
        // The clock may have been set back meanwhile, so the deadline is compared exactly.
        if self.deadline_ms.get() == now_ms {
            return self.locks.borrow().get(name).cloned();
        }
        self.clear();
        None
    }

    /// Forgets the lock of a name, because it was changed or released.
    #[inline(never)]
    pub fn forget(&self, name: &Name) {
        self.locks.borrow_mut().remove(name);
    }

    /// Forgets all locks.
    pub fn clear(&self) {
        self.deadline_ms.set(0);
        self.locks.take();
    }
}
