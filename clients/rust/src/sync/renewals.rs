//! One thread that renews the locks of all threads, and reports losses.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Grant, Lock};
use crate::mutex::Mutex;

/// The sleep of the thread when no grant is due.
const LONG: Duration = Duration::from_secs(3600);

/// The grants to renew. The thread starts with the first grant, and ends when this is closed.
#[derive(Default)]
pub(super) struct Renewals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    runs: bool,
    closed: bool,
    /// The time at which the thread next wakes by itself.
    next: Option<Instant>,
}

#[derive(Clone)]
struct Entry {
    lock: Lock,
    grant: Arc<Grant>,
}

impl Renewals {
    pub(super) fn add(self: &Arc<Self>, lock: Lock, grant: Arc<Grant>) {
        let mut state = self.state.lock();
        let due = grant.due();
        state.entries.push(Entry { lock, grant });
        if !state.runs {
            state.runs = true;
            let renewals = Arc::clone(self);
            thread::spawn(move || renewals.run());
        } else if state.next.is_none() || due < state.next {
            self.changed.notify_one();
        }
    }

    pub(super) fn remove(&self, grant: &Arc<Grant>) {
        let mut state = self.state.lock();
        state.entries.retain(|it| !Arc::ptr_eq(&it.grant, grant));
    }

    /// Wakes the thread, because a grant may be due sooner.
    pub(super) fn look_again(&self) {
        self.changed.notify_one();
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    fn run(&self) {
        while let Some(due) = self.next() {
            // The due entries may have the last reference to this, so no mutex is locked here.
            for Entry { lock, grant } in due {
                if grant.due().is_some() {
                    // A panic comes from one lock's `on_lost`. The other locks are renewed all the
                    // same.
                    let _ = catch_unwind(AssertUnwindSafe(|| lock.inner.renew(&grant)));
                }
                if grant.due().is_none() {
                    self.remove(&grant);
                }
            }
        }
    }

    /// Waits until grants are due, and returns them. Returns `None` when this is closed.
    fn next(&self) -> Option<Vec<Entry>> {
        let mut state = self.state.lock();
        while !state.closed {
            let now = Instant::now();
            let is_due = |it: &&Entry| it.grant.due().is_none_or(|due| due <= now);
            let due: Vec<Entry> = state.entries.iter().filter(is_due).cloned().collect();
            if !due.is_empty() {
                return Some(due);
            }
            state.next = state.entries.iter().filter_map(|it| it.grant.due()).min();
            let sleep = state.next.map_or(LONG, |next| next - now);
            let woken = self.changed.wait_timeout(state, sleep);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }
}
