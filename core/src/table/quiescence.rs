//! The lock table's invariant, checked after each operation in debug builds: no waiter is
//! admissible and still waits.
//!
//! The check covers the names that the operation has read. It uses the locks and the queues only.
//! So it finds errors in the records that save the table work.

use super::lock_table::WaitQueues;
use crate::budget::MOST_STEPS;
use crate::state::queue::Position;
use crate::state::waiter::Waiter;
use crate::transaction::Transaction;
use crate::values::lock::{Compatibility, Lock};
use crate::values::name::Name;
use crate::values::time::Now;

/// The most names checked, and the most waiters checked for each name. A debug build may serve
/// thousands.
const MOST_CHECKED: usize = 32;

/// The most waiters left to the timer. Beyond this nothing is checked, because each waiter is
/// compared with all of them.
const MOST_LEFT: usize = 1024;

/// A waiter that is admissible and still waits, with what the check saw of its names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overlooked {
    waiter: Waiter,
    seen: Vec<Seen>,
    now: Now,
}

/// A name as the check saw it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    is_read: bool,
    lock: Option<Lock>,
    due_ms: Option<u64>,
}

impl WaitQueues {
    /// Returns a waiter that is admissible and still waits, if there is one.
    pub(super) fn overlooked(&self, tx: &mut Transaction) -> Option<Overlooked> {
        let is_left_to_timer = self.queues.is_anyone_leaving() || self.backlog.len() > MOST_LEFT;
        if self.queues.is_empty() || tx.steps >= MOST_STEPS || is_left_to_timer {
            return None;
        }
        let names: Vec<Name> = tx.names_read().take(MOST_CHECKED).cloned().collect();
        let queued = names.iter().flat_map(|name| {
            let queue = self.queues.queue(name).take(MOST_CHECKED);
            queue.map(|(position, _)| position).collect::<Vec<_>>()
        });
        let overlooked = queued
            .into_iter()
            .find(|position| self.is_overlooked(*position, tx))?;
        let waiter = self.queues.at(overlooked).cloned()?;
        let seen = waiter.names.iter().map(|name| Seen {
            is_read: tx.has_read(name),
            lock: tx.peek(name),
            due_ms: self.schedule.time_of(name),
        });
        Some(Overlooked {
            seen: seen.collect(),
            now: tx.now(),
            waiter,
        })
    }

    fn is_overlooked(&self, position: Position, tx: &mut Transaction) -> bool {
        let is_left_to_timer =
            |waiter: &Waiter| self.backlog.includes(position, &waiter.request.token);
        let waiter = self.queues.at(position);
        let waiter = waiter.filter(|it| !it.kind.is_absent() && !is_left_to_timer(it));
        waiter.is_some_and(|waiter| {
            let mut names = waiter.names.iter();
            names.all(|name| self.is_open_to(name, position, waiter, tx))
        })
    }

    /// Returns true if no holder and no other waiter blocks a waiter at a name. Returns false if
    /// the timer is to look at the name first.
    fn is_open_to(
        &self,
        name: &Name,
        position: Position,
        waiter: &Waiter,
        tx: &mut Transaction,
    ) -> bool {
        let is_read = tx.has_read(name);
        let Some(lock) = tx.peek(name) else {
            return false;
        };
        // A lease may have ended at a name that is due. The timer looks at it, because the server
        // may just have deleted the key.
        let due_ms = self.schedule.time_of(name);
        let is_due = !is_read && due_ms.is_some_and(|ms| ms <= tx.steady_ms());
        // A free name is scheduled if its lock may be on another server. The timer looks again
        // soon.
        let is_due = is_due || (lock.is_free() && due_ms.is_some());
        if is_due || tx.environment.store.is_touched(name) {
            return false;
        }
        match lock.compatibility(&waiter.request) {
            Compatibility::Reentry { .. }
            | Compatibility::Downgrade { .. }
            | Compatibility::Upgrade
            | Compatibility::Raise { .. } => true,
            Compatibility::Admitted => {
                self.queues.head_at(name) == Some(position) && tx.environment.store.is_here(name)
            }
            Compatibility::UpgradeBlocked
            | Compatibility::RaiseBlocked { .. }
            | Compatibility::Blocked => false,
        }
    }
}
