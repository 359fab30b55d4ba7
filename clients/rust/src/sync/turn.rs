//! The turn of a thread: one thread at a time acquires or releases with a lock, and another thread
//! may cancel its wait.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::mutex::Mutex;

/// The interval at which a cancellation is repeated, because at the first one the wait may not have
/// begun.
const TELL_AGAIN: Duration = Duration::from_millis(20);

/// The longest sleep of a thread that waits for its turn without a time limit.
const LONG: Duration = Duration::from_secs(3600);

/// The activity of the thread that has the turn.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Doing {
    #[default]
    Nothing,
    Tries,
    Waits,
    GivesUp,
    Releases,
}

#[derive(Default)]
pub(super) struct Turn {
    doing: Mutex<Doing>,
    changed: Condvar,
}

/// The turn of a thread, which ends when this is dropped.
pub(super) struct MyTurn<'a>(&'a Turn);

impl Turn {
    /// Waits for this thread's turn. Returns `None` at `end`, or if this thread only tries and
    /// another thread waits already.
    pub(super) fn enter(&self, does: Doing, end: Option<Instant>) -> Option<MyTurn<'_>> {
        let mut doing = self.doing.lock();
        while *doing != Doing::Nothing {
            if does == Doing::Tries && matches!(*doing, Doing::Waits | Doing::GivesUp) {
                return None;
            }
            let left = end.map_or(Some(LONG), |end| end.checked_duration_since(Instant::now()))?;
            doing = self.wait_while(doing, left, |doing| doing != Doing::Nothing);
        }
        *doing = does;
        Some(MyTurn(self))
    }

    /// Cancels the wait of the thread that has the turn, by calling `tell` until the wait has
    /// ended. Returns false if no thread waits.
    pub(super) fn cancel(&self, tell: impl Fn()) -> bool {
        let mut doing = self.doing.lock();
        if *doing != Doing::Waits {
            return false;
        }
        *doing = Doing::GivesUp;
        self.changed.notify_all();
        while *doing == Doing::GivesUp {
            drop(doing);
            tell();
            doing = self.wait_while(self.doing.lock(), TELL_AGAIN, |doing| {
                doing == Doing::GivesUp
            });
        }
        true
    }

    fn wait_while<'a>(
        &self,
        doing: MutexGuard<'a, Doing>,
        left: Duration,
        goes_on: impl Fn(Doing) -> bool,
    ) -> MutexGuard<'a, Doing> {
        let waited = self
            .changed
            .wait_timeout_while(doing, left, |doing| goes_on(*doing));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl MyTurn<'_> {
    /// Sleeps until `at`. Returns true, without sleeping on, if the wait is cancelled.
    pub(super) fn pause_until(&self, at: Instant) -> bool {
        let left = at.saturating_duration_since(Instant::now());
        let goes_on = |doing| doing != Doing::GivesUp;
        *self.0.wait_while(self.0.doing.lock(), left, goes_on) == Doing::GivesUp
    }

    /// Ends the time in which the wait can be cancelled. Returns true if it was cancelled.
    pub(super) fn ends_given_up(&self) -> bool {
        let mut doing = self.0.doing.lock();
        if *doing == Doing::Waits {
            *doing = Doing::Releases;
        }
        *doing == Doing::GivesUp
    }
}

impl Drop for MyTurn<'_> {
    fn drop(&mut self) {
        *self.0.doing.lock() = Doing::Nothing;
        self.0.changed.notify_all();
    }
}
