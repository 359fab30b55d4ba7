//! Observers, and the calls of the program's functions.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use crate::error::Error;
use crate::options::Keys;

/// The end of an acquire that didn't get the lock at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lock was acquired.
    Granted,
    /// The limit ended first.
    NotAcquired,
    /// The wait was cancelled, or its future was dropped.
    Cancelled,
    /// The acquire failed.
    Failed,
}

/// The lock, or the grant, that an observer hears of.
#[derive(Debug)]
#[non_exhaustive]
pub struct Subject<'a> {
    /// The number of the lock, as its `id` returns it.
    pub lock_id: u64,
    /// The keys of the lock.
    pub keys: &'a Keys,
    /// The fencing token of the grant. `None` if there is no grant.
    pub fence: Option<i64>,
}

/// An observer of all locks of a `Locks`. A method must return quickly, and must not wait for a
/// lock, because it runs in the thread or task that met the event. If a method panics, the library
/// logs that and goes on.
pub trait Observer: Send + Sync {
    /// Called after an acquire that didn't get the lock at once.
    fn waited(&self, lock: &Subject<'_>, waited: Duration, outcome: Outcome) {
        let _ = (lock, waited, outcome);
    }

    /// Called after each grant.
    fn granted(&self, grant: &Subject<'_>) {
        let _ = grant;
    }

    /// Called once for each loss. Logs a warning by default.
    fn lost(&self, grant: &Subject<'_>) {
        log::warn!("the lock {} was lost", grant.keys);
    }

    /// Called once for each outage that ends no call: while a call waits without a limit, or in the
    /// background. Logs a warning by default.
    fn unavailable(&self, error: &Error) {
        log::warn!("{error}");
    }
}

/// The observer of a program that sets none.
pub(crate) struct Log;

impl Observer for Log {}

/// Calls a function of the program. Logs its panic.
pub(crate) fn tell(hook: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(hook)).is_err() {
        log::error!("a hook panicked");
    }
}
