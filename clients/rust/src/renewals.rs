//! One thread that renews what the others hold, and tells of what was lost.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::owner::{Held, Owner};

/// How long the thread sleeps when nothing is due.
const LONG: Duration = Duration::from_secs(3600);

/// The thread starts with the first grant, and ends with this.
pub(crate) struct Renewals {
    list: Arc<List>,
}

#[derive(Default)]
struct List {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    grants: Vec<Renewed>,
    runs: bool,
    closed: bool,
    /// When the thread looks again by itself.
    next: Option<Instant>,
}

#[derive(Clone)]
struct Renewed {
    owner: Arc<Owner>,
    held: Arc<Held>,
}

impl Renewals {
    pub(crate) fn new() -> Renewals {
        Renewals {
            list: Arc::default(),
        }
    }

    pub(crate) fn add(&self, owner: Arc<Owner>, held: Arc<Held>) {
        let mut state = self.list.state();
        let due = held.grant.due();
        state.grants.push(Renewed { owner, held });
        if !state.runs {
            state.runs = true;
            let list = Arc::clone(&self.list);
            thread::spawn(move || list.run());
        } else if state.next.is_none() || due < state.next {
            self.list.changed.notify_one();
        }
    }

    pub(crate) fn remove(&self, held: &Arc<Held>) {
        self.list.remove(held);
    }

    /// Something is due sooner than it was.
    pub(crate) fn look_again(&self) {
        self.list.changed.notify_one();
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.list.state().closed = true;
        self.list.changed.notify_one();
    }
}

impl List {
    fn run(&self) {
        while let Some(due) = self.next() {
            // What is due may hold the last reference to all of this, so no lock is held here.
            for Renewed { owner, held } in due {
                if held.grant.due().is_some() {
                    // A panic is that of one lock's `on_lost`: the other locks are renewed all the same.
                    let _ = catch_unwind(AssertUnwindSafe(|| owner.renew(&held)));
                }
                if held.grant.due().is_none() {
                    self.remove(&held);
                }
            }
        }
    }

    /// Waits until something is due. None: there is nothing to renew any more.
    fn next(&self) -> Option<Vec<Renewed>> {
        let mut state = self.state();
        while !state.closed {
            let now = Instant::now();
            let is_due = |it: &&Renewed| it.held.grant.due().is_none_or(|due| due <= now);
            let due: Vec<Renewed> = state.grants.iter().filter(is_due).cloned().collect();
            if !due.is_empty() {
                return Some(due);
            }
            state.next = state
                .grants
                .iter()
                .filter_map(|it| it.held.grant.due())
                .min();
            let sleep = state.next.map_or(LONG, |next| next - now);
            let woken = self.changed.wait_timeout(state, sleep);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    fn remove(&self, held: &Arc<Held>) {
        let mut state = self.state();
        state.grants.retain(|it| !Arc::ptr_eq(&it.held, held));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
