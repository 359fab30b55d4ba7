//! What falls due without an operation: leases, sessions, the ends of waits, deferred waiters.

use std::collections::BTreeSet;

use foldhash::HashSet;

use super::lock_table::{LockTable, Waiting};
use super::settle::{WorkList, MOST_STEPS, RETRY_MS};
use crate::branch::unlikely;
use crate::decision::{Answer, Decision, Outcome};
use crate::state::queue::Position;
use crate::store::{Environment, KeyState};
use crate::transaction::Transaction;
use crate::values::name::Name;
use crate::values::session_id::SessionId;

impl Waiting {
    fn pending_until(&self, steady_ms: u64, most: usize) -> Vec<(u64, Position)> {
        let due = self.pending.iter().take_while(|(ms, _)| *ms <= steady_ms);
        due.take(most).copied().collect()
    }

    /// The name by which it is decided whether a waiter may be granted now: all of its names are in
    /// one slot, if there are slots.
    fn name_for(&self, position: Position) -> Option<Name> {
        let waiter = self.queues.at(position)?;
        let blocked_by = self.queues.blocked_by(position);
        blocked_by.or(waiter.names.iter().next()).cloned()
    }

    /// Takes out those who are pending at these names, and those who left meanwhile.
    fn take_pending(
        &mut self,
        steady_ms: u64,
        most: usize,
        names: &HashSet<&Name>,
    ) -> BTreeSet<Position> {
        let mut taken = BTreeSet::new();
        for pending in self.pending_until(steady_ms, most) {
            let name = self.name_for(pending.1);
            if name.is_none_or(|name| names.contains(&name)) {
                self.pending.remove(&pending);
                taken.insert(pending.1);
            }
        }
        taken
    }

    /// Ends the waits whose time is over, at most `most`. The names that they leave are settled, or,
    /// where that may not be done now, those who are first there by then are to be looked at next.
    fn time_out(
        &mut self,
        most: usize,
        settled: &HashSet<&Name>,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let steady_ms = tx.steady_ms();
        for position in self.queues.timed_out(steady_ms, most) {
            if tx.steps >= MOST_STEPS {
                return;
            }
            let mut work = WorkList::new(tx);
            if self
                .name_for(position)
                .is_some_and(|name| settled.contains(&name))
            {
                work.extend([position]);
            } else {
                let vacated = self.end_wait(position, Outcome::TimedOut, tx);
                let heads = vacated.iter().filter_map(|name| self.queues.head(name));
                self.pending.extend(heads.map(|head| (steady_ms, head)));
            }
            self.process(work, tx);
        }
    }
}

impl LockTable {
    /// The names to settle at `steady_ms` without anybody's operation: those that are scheduled, with a
    /// session that is due, with a waiter whose time is over or who may be admitted; at most `most` of
    /// each kind.
    pub fn due_names(&mut self, steady_ms: u64, most: usize) -> Vec<Name> {
        self.sessions.work_off(steady_ms, most);
        let mut due = self.waiting.schedule.due(steady_ms, most);
        due.extend(self.waiting.queues.work_off(most));
        let sessions = self.sessions.due(steady_ms, most);
        due.extend(sessions.into_iter().map(|(_, name)| name));
        let pending = self.waiting.pending_until(steady_ms, most).into_iter();
        let waiters = pending
            .map(|(_, position)| position)
            .chain(self.waiting.queues.timed_out(steady_ms, most));
        due.extend(waiters.filter_map(|position| self.waiting.name_for(position)));
        due
    }

    /// Settles these names, and ends the waits whose time is over; at most `most` of those.
    ///
    /// Of the names that are due, the caller leaves out those where nothing may be granted now.
    pub fn settle_due<'n>(
        &mut self,
        names: &'n [Name],
        most: usize,
        environment: &mut Environment<'_, 'n>,
    ) -> Decision {
        let settled: HashSet<&Name> = names.iter().collect();
        let steady_ms = environment.store.steady_ms();
        let mut sessions = self.sessions.due(steady_ms, most);
        sessions.retain(|(_, name)| settled.contains(name));
        let decision = self.transact(names, environment, |waiting, tx| {
            for (id, name) in &sessions {
                tx.renew(name, *id);
            }
            let mut work = WorkList::new(tx);
            work.extend(waiting.take_pending(steady_ms, most, &settled));
            for name in names {
                waiting.recheck_name(name, &mut work, tx);
            }
            waiting.process(work, tx);
            waiting.time_out(most, &settled, tx);
            Ok(Answer::NotNow)
        });
        for (id, _) in sessions {
            // Still due after its name was settled: the grant is gone.
            if self.sessions.is_due(id, steady_ms) {
                self.sessions.end_session(id);
            }
        }
        decision
    }

    /// Ends the waits that are due where nothing may be granted, as during CLIENT PAUSE.
    pub fn time_out_due(&mut self, most: usize, environment: &mut Environment<'_, '_>) -> Decision {
        self.transact(&[], environment, |waiting, tx| {
            waiting.time_out(most, &HashSet::default(), tx);
            Ok(Answer::NotNow)
        })
    }

    /// The names whose next lease, for the end of which somebody waits, ends by `until_ms`: at most
    /// `most` of them, each told once.
    pub fn announce_ends(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        self.waiting.queues.announce_ends(until_ms, most)
    }

    /// The wall clock was set: when leases end is to be found out anew.
    pub fn clock_was_set(&mut self, steady_ms: u64) {
        self.waiting.schedule.set_all(steady_ms);
    }

    /// Defers what is due at these names, where nothing may be written now: queues shortly, sessions for
    /// a part of their lease. Sessions that are due and whose grant is gone, as after the key's slot moved
    /// to another server, are dropped; at most `most` of them are looked at.
    pub fn defer(&mut self, names: &[Name], most: usize, environment: &mut Environment<'_, '_>) {
        let steady_ms = environment.store.steady_ms();
        let later_ms = steady_ms.saturating_add(RETRY_MS);
        for name in names {
            self.waiting.queues.forget_lock(name);
            let scheduled = self.waiting.schedule.time_of(name).is_some();
            if scheduled || self.waiting.queues.has_queue(name) {
                self.waiting.schedule.set(name, later_ms, steady_ms);
            }
        }
        // A time may be set anew before it has come; who is first by then is not forgotten.
        let heads = names
            .iter()
            .filter_map(|name| self.waiting.queues.head(name));
        let heads: Vec<Position> = heads.collect();
        let names: HashSet<&Name> = names.iter().collect();
        let pending = self.waiting.take_pending(steady_ms, most, &names);
        self.waiting.pending.extend(
            pending
                .into_iter()
                .chain(heads)
                .map(|position| (later_ms, position)),
        );
        for (id, name) in self.sessions.due(steady_ms, most) {
            if !names.contains(&name) {
                continue;
            }
            if has_session(&environment.store.read(&name), id) {
                self.sessions.defer(id, steady_ms);
            } else {
                self.sessions.end_session(id);
            }
        }
    }

    /// Whether a name is to be settled at some time without anybody's operation.
    pub fn is_scheduled(&self, name: &Name) -> bool {
        self.waiting.schedule.time_of(name).is_some()
    }

    /// When something is due without anybody's operation, on the steady clock in ms.
    #[inline]
    pub fn next_due_ms(&self) -> Option<u64> {
        let nobody_waits = self.waiting.is_idle() && self.waiting.pending.is_empty();
        if nobody_waits && self.sessions.is_empty() && !self.waiting.queues.is_anyone_leaving() {
            return None;
        }
        if unlikely(self.waiting.queues.is_anyone_leaving()) {
            return Some(0);
        }
        let pending_ms = self.waiting.pending.first().map(|(ms, _)| *ms);
        let waiting_ms = sooner(
            self.waiting.schedule.next_ms(),
            self.waiting.queues.next_timeout_ms(),
        );
        sooner(waiting_ms, sooner(self.sessions.next_due_ms(), pending_ms))
    }
}

/// The sooner of two times, where there is any.
fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, None) => one,
        (None, other) => other,
    }
}

/// Whether a lock with a holder of this session is there.
fn has_session(state: &KeyState, id: SessionId) -> bool {
    match state {
        KeyState::Lock(stored) => stored.lock.holders().with_session(id).is_some(),
        KeyState::Empty | KeyState::OtherType => false,
    }
}
