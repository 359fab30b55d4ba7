//! Work that falls due without an operation: leases, sessions, ends of waits, the backlog.

use foldhash::HashSet;

use super::lock_table::{LockTable, WaitQueues};
use super::settle::AWAY_RETRY_MS;
use super::worklist::WorkList;
use crate::decision::{Answer, Decision};
use crate::hints::unlikely;
use crate::state::backlog::Walk;
use crate::state::queue::Position;
use crate::store::{Environment, KeyState};
use crate::transaction::Transaction;
use crate::values::name::Name;
use crate::values::session_id::SessionId;

impl LockTable {
    /// Returns the names to settle at `steady_ms` without an operation, at most `most` of each
    /// kind:
    ///
    /// 1. names that are scheduled;
    /// 2. names that waiters have left;
    /// 3. names with a session that is due;
    /// 4. names of waiters in the backlog, and of those whose time is over.
    pub fn due_names(&mut self, steady_ms: u64, most: usize) -> Vec<Name> {
        self.sessions.work_off(steady_ms, most);
        let mut due = self.wait_queues.schedule.due(steady_ms, most);
        due.extend(self.wait_queues.queues.work_off(most));
        let sessions = self.sessions.due(steady_ms, most);
        due.extend(sessions.into_iter().map(|(_, name)| name));
        let backlog = self.wait_queues.backlog.until(steady_ms, most);
        let waiters = backlog
            .into_iter()
            .chain(self.wait_queues.queues.timed_out(steady_ms, most));
        due.extend(waiters.filter_map(|position| self.wait_queues.name_for(position)));
        due
    }

    /// Settles these names, renews their due sessions, and ends the waits whose time is over.
    /// Handles at most `most` waiters of the backlog, sessions and waits each.
    ///
    /// The caller leaves out due names that may not be written now.
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
        let decision = self.transact(names, environment, |wait_queues, tx| {
            for (id, name) in &sessions {
                tx.renew(name, *id);
            }
            let mut work = WorkList::new(tx);
            for (position, walks) in wait_queues.take_backlog(steady_ms, most, &settled) {
                work.extend([position]);
                for walk in walks {
                    work.walk(position, walk);
                }
            }
            for name in names {
                wait_queues.recheck_name(name, &mut work, tx);
            }
            tx.begin_part();
            wait_queues.process(work, tx);
            wait_queues.time_out(most, &settled, tx);
            Ok(Answer::NotNow)
        });
        for (id, _) in sessions {
            // The session is still due after its name was settled, so its grant is gone.
            if self.sessions.is_due(id, steady_ms) {
                self.sessions.end_session(id);
            }
        }
        decision
    }

    /// Ends the waits whose time is over while nothing may be granted, like during CLIENT PAUSE.
    pub fn time_out_due(&mut self, most: usize, environment: &mut Environment<'_, '_>) -> Decision {
        self.transact(&[], environment, |wait_queues, tx| {
            wait_queues.time_out(most, &HashSet::default(), tx);
            Ok(Answer::NotNow)
        })
    }

    /// Returns the names with a waiter whose next lease ends by `until_ms`, at most `most` of them.
    /// Each end is returned once.
    pub fn announce_ends(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        self.wait_queues.queues.announce_ends(until_ms, most)
    }

    /// Makes all scheduled names due. The wall clock was set, so the ends of leases must be
    /// computed anew.
    pub fn clock_was_set(&mut self, steady_ms: u64) {
        self.wait_queues.schedule.set_all(steady_ms);
    }

    /// Defers what is due at these names, because nothing may be written there now. Handles at most
    /// `most` waiters of the backlog and at most `most` sessions.
    ///
    /// 1. Queues are deferred by `RETRY_MS`, sessions by a part of their lease.
    /// 2. A due session is ended if its grant is gone, for example because its slot has moved to
    ///    another server.
    pub fn defer(&mut self, names: &[Name], most: usize, environment: &mut Environment<'_, '_>) {
        let steady_ms = environment.store.steady_ms();
        let later_ms = steady_ms.saturating_add(AWAY_RETRY_MS);
        for name in names {
            self.wait_queues.queues.forget_lock(name);
            let scheduled = self.wait_queues.schedule.time_of(name).is_some();
            if scheduled || self.wait_queues.queues.has_queue(name) {
                self.wait_queues.schedule.set(name, later_ms, steady_ms);
            }
        }
        // A scheduled time can be replaced before it comes. So the heads of the queues go
        // to the backlog too.
        let heads = names
            .iter()
            .filter_map(|name| self.wait_queues.queues.head_at(name));
        let heads: Vec<Position> = heads.collect();
        let names: HashSet<&Name> = names.iter().collect();
        let backlog = self.wait_queues.take_backlog(steady_ms, most, &names);
        let heads = heads.into_iter().map(|head| (head, Vec::new()));
        for (position, walks) in backlog.into_iter().chain(heads) {
            self.wait_queues.backlog.insert(later_ms, position, walks);
        }
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

    /// Returns true if any name is to be settled at some time without an operation.
    pub fn is_any_scheduled(&self) -> bool {
        !self.wait_queues.schedule.is_empty()
    }

    /// Returns true if a name is to be settled at some time without an operation.
    pub fn is_scheduled(&self, name: &Name) -> bool {
        self.wait_queues.schedule.time_of(name).is_some()
    }

    /// Returns when marks of tokens that have left are to be swept, on the steady clock in ms.
    #[inline(always)]
    pub fn next_sweep_ms(&self) -> Option<u64> {
        self.wait_queues.leave_marks.next_sweep_ms()
    }

    /// Returns when something is due without an operation, on the steady clock in ms.
    #[inline]
    pub fn next_due_ms(&self) -> Option<u64> {
        let nobody_waits = self.wait_queues.is_idle() && self.wait_queues.backlog.is_empty();
        if nobody_waits && self.sessions.is_empty() && !self.wait_queues.queues.is_anyone_leaving()
        {
            return self.next_sweep_ms();
        }
        if unlikely(self.wait_queues.queues.is_anyone_leaving()) {
            return Some(0);
        }
        let backlog_ms = self.wait_queues.backlog.next_ms();
        let waiting_ms = sooner(
            self.wait_queues.schedule.next_ms(),
            self.wait_queues.queues.next_timeout_ms(),
        );
        let soonest_ms = sooner(waiting_ms, sooner(self.sessions.next_due_ms(), backlog_ms));
        sooner(soonest_ms, self.next_sweep_ms())
    }
}

impl WaitQueues {
    /// Returns the name that decides if the server may grant a waiter its names now. In a cluster,
    /// all names of a waiter are in one slot. If the waiter has left, it is the name of a walk there.
    fn name_for(&self, position: Position) -> Option<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return self.backlog.walk_name(position).cloned();
        };
        let blocked_by = self.queues.blocked_by(position);
        blocked_by.or(waiter.names.iter().next()).cloned()
    }

    /// Removes and returns the backlog's waiters of these names, with the walks at them. Also removes
    /// waiters that have left meanwhile.
    fn take_backlog(
        &mut self,
        steady_ms: u64,
        most: usize,
        names: &HashSet<&Name>,
    ) -> Vec<(Position, Vec<Walk>)> {
        let mut taken = Vec::new();
        for position in self.backlog.until(steady_ms, most) {
            let name = self.name_for(position);
            if name.is_none_or(|name| names.contains(&name)) {
                taken.push((position, self.backlog.remove(position)));
            }
        }
        taken
    }

    /// Ends the waits whose time is over, at most `most` of them.
    ///
    /// A waiter at a name in `settled` is still granted if it is admissible. Elsewhere nothing may
    /// be granted now, so the new heads of its queues go to the backlog.
    fn time_out(&mut self, most: usize, settled: &HashSet<&Name>, tx: &mut Transaction) {
        let steady_ms = tx.steady_ms();
        tx.begin_part();
        for position in self.queues.timed_out(steady_ms, most) {
            if !tx.has_steps_left() {
                return;
            }
            let mut work = WorkList::new(tx);
            if self
                .name_for(position)
                .is_some_and(|name| settled.contains(&name))
            {
                work.extend([position]);
            } else {
                let vacated = self.time_out_at(position, tx);
                let heads = vacated.iter().filter_map(|name| self.queues.head_at(name));
                heads.for_each(|head| self.backlog.insert(steady_ms, head, Vec::new()));
            }
            self.process(work, tx);
        }
    }
}

/// Returns the sooner of two times, if there is any.
fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, None) => one,
        (None, other) => other,
    }
}

/// Returns true if the key has a lock with a holder of this session.
fn has_session(state: &KeyState, id: SessionId) -> bool {
    match state {
        KeyState::Lock(stored) => stored.lock.holders().with_session(id).is_some(),
        KeyState::Empty | KeyState::OtherType => false,
    }
}
