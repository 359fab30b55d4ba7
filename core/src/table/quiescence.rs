//! The table's promise, checked after each operation in debug builds: no waiter is admissible and still waits.
//!
//! The check looks at the names that the operation has read. It decides from the locks and the queues alone, and
//! not by what is recorded to save work, so that it finds what those records forget.

use super::lock_table::Waiting;
use super::settle::MOST_STEPS;
use crate::state::queue::{Position, Waiter};
use crate::transaction::Transaction;
use crate::values::lock::Compatibility;
use crate::values::name::Name;

/// Names and, of each, waiters that are checked: a debug build may serve thousands.
const MOST_CHECKED: usize = 32;

/// Waiters left to the timer, beyond which nothing is checked, because each waiter is compared with all of them.
const MOST_LEFT: usize = 1024;

impl Waiting {
    /// Returns a waiter that is admissible and still waits, if there is one.
    pub(super) fn overlooked(&self, tx: &mut Transaction<'_, '_, '_>) -> Option<Waiter> {
        let is_left_to_timer = self.queues.is_anyone_leaving() || self.pending.len() > MOST_LEFT;
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
        self.queues.at(overlooked).cloned()
    }

    fn is_overlooked(&self, position: Position, tx: &mut Transaction<'_, '_, '_>) -> bool {
        let is_left_to_timer = self.pending.iter().any(|(_, left)| *left == position);
        let waiter = self.queues.at(position);
        let waiter = waiter.filter(|waiter| !waiter.stand.is_absent() && !is_left_to_timer);
        waiter.is_some_and(|waiter| {
            let mut names = waiter.names.iter();
            names.all(|name| self.is_open_to(name, position, waiter, tx))
        })
    }

    /// Returns true if nothing at a name is in the way of a waiter, and the timer need not look at the name first.
    fn is_open_to(
        &self,
        name: &Name,
        position: Position,
        waiter: &Waiter,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> bool {
        let is_read = tx.has_read(name);
        let Some(lock) = tx.peek(name) else {
            return false;
        };
        // Something has ended there by now, which the timer looks at: the server may have deleted the key just now.
        let due_ms = self.schedule.time_of(name);
        let is_due = !is_read && due_ms.is_some_and(|ms| ms <= tx.steady_ms());
        // A free name has a time where its key may be at another server: the timer looks again soon.
        let is_due = is_due || (lock.is_free() && due_ms.is_some());
        if is_due || tx.environment.store.is_touched(name) {
            return false;
        }
        match lock.compatibility(&waiter.request) {
            Compatibility::Repeat { .. }
            | Compatibility::Downgrade { .. }
            | Compatibility::Upgrade
            | Compatibility::Raise { .. } => true,
            Compatibility::Admitted => {
                self.queues.head(name) == Some(position) && tx.environment.store.is_here(name)
            }
            Compatibility::UpgradeBlocked
            | Compatibility::RaiseBlocked { .. }
            | Compatibility::Blocked => false,
        }
    }
}
