//! Contended names: what the table counts there of holders that go and of waits that end.
//!
//! 1. A holder is counted if a waiter waited for its name when it went, by whatever way.
//! 2. A holder that went without an operation is found when its name is settled. The queue has
//!    recorded the lock at the last settling, and the holder is missing in the key.

use super::lock_table::WaitQueues;
use crate::hints::unlikely;
use crate::state::lost_holds::{Loss, LostHold};
use crate::state::queue::Position;
use crate::transaction::{EntryId, Transaction};
use crate::values::lock::Lock;
use crate::values::name::Name;

impl WaitQueues {
    /// Counts a holder that goes now, if a waiter waits for the name.
    #[inline(never)]
    pub(super) fn count_end(&mut self, name: &Name, held_ms: u64, tx: &mut Transaction) {
        // perf: most waiters are present, and the first of them is found without a search.
        let Some(queue) = tx.queue(name, &self.queues) else {
            return;
        };
        if self.queues.head(queue).is_some() || self.queues.first(queue).is_some() {
            self.contention
                .end_hold(name, held_ms, tx.steady_ms(), &self.queues);
        }
    }

    /// Counts the holds that the operation has found to be lost. Called before a queue changes, for
    /// the waiters that waited then.
    #[inline]
    pub(super) fn count_lost(&mut self, tx: &mut Transaction) {
        if unlikely(!tx.lists.lost_holds.is_empty()) {
            self.count_all_lost(tx);
        }
    }

    #[inline(never)]
    fn count_all_lost(&mut self, tx: &mut Transaction) {
        for (id, lost) in std::mem::take(&mut tx.lists.lost_holds) {
            self.times.lost_holds.record(lost);
            if let Some(name) = tx.name_of(id).cloned() {
                self.count_end(&name, lost.held_ms(), tx);
            }
        }
    }

    /// Like [`WaitQueues::count_missing`], before the queue of a name records its lock anew.
    #[inline]
    pub(super) fn count_vanished(&mut self, id: EntryId, tx: &mut Transaction) {
        // perf: a holder vanishes with its key, or when the key changes.
        if unlikely(!tx.nothing_touched || tx.lock_before(id).is_free()) {
            self.count_missing(id, tx);
        } else {
            tx.mark_compared(id);
        }
    }

    /// Counts the holders of a name that went without an operation since the name was settled last.
    #[inline(never)]
    pub(super) fn count_missing(&mut self, id: EntryId, tx: &mut Transaction) {
        if tx.mark_compared(id) {
            return;
        }
        let Some(name) = &tx.name_of(id).cloned() else {
            return;
        };
        let recorded = self.queues.recorded_lock(name);
        let missing =
            recorded.map(|recorded| held_by_missing(recorded, tx.lock_before(id), tx.now_ms()));
        for held_ms in missing.into_iter().flatten() {
            self.count_end(name, held_ms, tx);
        }
    }

    /// Like [`WaitQueues::count_before_end`], for a present waiter that is granted.
    // perf: the only name of a present waiter was compared when it was settled.
    #[inline]
    pub(super) fn count_before_grant(&mut self, position: Position, tx: &mut Transaction) {
        let waiter = self.queues.at(position);
        if waiter.is_some_and(|waiter| unlikely(waiter.names.count() > 1)) {
            self.count_before_end(position, tx);
        } else {
            self.count_lost(tx);
        }
    }

    /// Counts the holders that went while a waiter waited, before its wait ends and its queues may
    /// be gone.
    #[inline(never)]
    pub(super) fn count_before_end(&mut self, position: Position, tx: &mut Transaction) {
        self.count_lost(tx);
        let names = self.queues.at(position).map(|waiter| waiter.names.clone());
        for name in names.iter().flatten() {
            if tx.has_read(name) {
                let id = tx.entry(name);
                self.count_vanished(id, tx);
            }
        }
    }

    /// Counts the ends of all waits without a connection.
    pub(super) fn end_places(&mut self, now_ms: u64) {
        for place in self.queues.places() {
            self.contention
                .end_wait(&place.names, place.since_ms, now_ms, &self.queues);
        }
    }
}

/// Returns how long each holder of the recorded lock that is missing in the lock as it was read had
/// held it, in ms.
fn held_by_missing(recorded: &Lock, read: &Lock, now_ms: u64) -> Vec<u64> {
    let differences = recorded.holders().differences(read.holders());
    let missing = differences.iter().filter(|it| it.after.is_none());
    let missing = missing.filter_map(|it| it.before);
    let held = missing.map(|own| LostHold::of(own, Loss::Deleted, now_ms).held_ms());
    held.collect()
}
