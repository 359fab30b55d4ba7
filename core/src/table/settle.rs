//! Settling a name: expire its leases, then grant it to every waiter that has become admissible.
//!
//! 1. A change at a name adds to a work list the waiters that it may have made admissible: the head
//!    of the queue, a sole shared holder that waits for a conversion, and the first waiter whose
//!    lack of permits is met.
//! 2. The work is processed in queue order. So a grant does not depend on the name that brought a
//!    waiter up.
//! 3. Each grant changes locks, which may add further waiters.
//! 4. After [`MOST_STEPS`](crate::budget::MOST_STEPS) steps the rest of the work is left to the
//!    timer.
//! 5. Each name is scheduled once, at the end of the work.

use super::admission::Admission;
use super::grants::{held_by, note_holds_after, Grantee};
use super::held_replies::hold_back_hand_over;
use super::lock_table::WaitQueues;
use super::place::publish;
use super::worklist::WorkList;
use crate::budget::COMPLETION_STEPS;
use crate::decision::{Completion, Outcome};
use crate::hints::{cold_path, likely, unlikely};
use crate::state::backlog::Walk;
use crate::state::hand_over::{FenceOrigin, GrantReply, HandOver, TakeBack};
use crate::state::lacking::Lacking;
use crate::state::queue::Position;
use crate::state::waiter::{Waiter, WaiterId, WaiterKind};
use crate::transaction::{EntryId, Transaction};
use crate::values::holder::Mode;
use crate::values::lock::{Lack, Lock};
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::token::Token;

/// The delay until another look at a queue where nothing may be granted now, in ms. An obstacle
/// like the migration of a slot takes longer than that.
pub(super) const AWAY_RETRY_MS: u64 = 20;

/// The outcome of a wait that a newer wait of its token replaces.
pub(super) const TAKEN_OVER: Outcome = Outcome::Refused(Refusal::TakenOver);

/// The most that the wall clock may be ahead of the steady clock, in ms, because both are cut to
/// whole ms.
const CLOCKS_APART_MS: u64 = 1;

impl WaitQueues {
    /// Settles those of an operation's names that are not settled yet.
    #[inline(always)]
    pub(super) fn settle_unsettled(&mut self, names: &Names, tx: &mut Transaction) {
        if unlikely(!self.is_idle() || !tx.nothing_touched) {
            self.settle_all_unsettled(names, tx);
        }
    }

    #[inline(never)]
    fn settle_all_unsettled(&mut self, names: &Names, tx: &mut Transaction) {
        if unlikely(self.queues.is_anyone_leaving()) {
            self.settle_left(names, tx);
        }
        let unsettled = self.unsettled(names, tx);
        self.settle(&unsettled, tx);
    }

    /// Settles those of these names whose first waiters have left but still have positions in the
    /// queue. Removes these positions.
    #[inline(never)]
    fn settle_left(&mut self, names: &Names, tx: &mut Transaction) {
        let is_left = |name: &&Name| self.queues.pass_over_left(name) > 0;
        let left: Vec<Name> = names.iter().filter(is_left).cloned().collect();
        self.settle(&left, tx);
    }

    /// Returns those of these names that have a waiter and are not settled: the head's time is
    /// over, the name is due, or its key may have changed. All other names were settled when
    /// something happened to them.
    fn unsettled(&self, names: &Names, tx: &mut Transaction) -> Vec<Name> {
        let steady_ms = tx.steady_ms();
        let is_due = |ms: Option<u64>| ms.is_some_and(|ms| ms <= steady_ms);
        let is_any_due = is_due(self.schedule.next_ms()) || is_due(self.queues.next_timeout_ms());
        if likely(!is_any_due && tx.nothing_touched) {
            return Vec::new();
        }
        let unsettled = names.iter().filter(|name| {
            let head = self
                .queues
                .head_at(name)
                .and_then(|position| self.queues.at(position));
            head.is_some_and(|head| {
                head.is_over(steady_ms)
                    || is_due(self.schedule.time_of(name))
                    || tx.environment.store.is_touched(name)
            })
        });
        unsettled.cloned().collect()
    }

    /// Settles these names, and the names whose locks or queues the operation has changed.
    #[inline(always)]
    pub(super) fn settle(&mut self, names: &[Name], tx: &mut Transaction) {
        if names.is_empty() && self.is_idle() && !tx.any_shared {
            tx.lists.changed.clear();
        }
        if !names.is_empty() || !tx.lists.changed.is_empty() || !tx.lists.again.is_empty() {
            self.settle_all(names, tx);
        }
    }

    #[inline(never)]
    fn settle_all(&mut self, names: &[Name], tx: &mut Transaction) {
        let mut work = WorkList::new(tx);
        for name in names {
            self.recheck_name(name, &mut work, tx);
        }
        self.process(work, tx);
    }

    /// Returns true if there is no waiter and no name is scheduled. Then a change needs settling
    /// only if its lock has several holders, because the end of the first lease is to be scheduled.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.schedule.is_empty()
    }

    /// Processes the work in queue order, including the waiters that it adds, until it is empty or
    /// the steps of the operation are taken.
    pub(super) fn process(&mut self, mut work: WorkList, tx: &mut Transaction) {
        self.recheck_changes(&mut work, tx);
        while tx.has_steps_left() {
            let Some(position) = work.pop_first() else {
                break;
            };
            for name in self.try_admit(position, &mut work, tx) {
                self.recheck_name(&name, &mut work, tx);
            }
            if unlikely(work.has_walks()) {
                self.continue_walks(position, &mut work);
            }
            self.recheck_changes(&mut work, tx);
        }
        for id in work.take_names() {
            self.reschedule(id, tx);
        }
        if unlikely(!work.is_empty()) {
            self.leave_to_timer(&mut work, tx);
        }
        work.put_back(tx);
        debug_assert!(tx.lists.changed.is_empty(), "a change was not looked at");
    }

    /// Adds to the work the waiters that the operation's changes may have made admissible.
    fn recheck_changes(&mut self, work: &mut WorkList, tx: &mut Transaction) {
        if unlikely(!tx.lists.granted.is_empty()) {
            self.recheck_granted(work, tx);
        }
        if unlikely(tx.lists.changed.len() > 1) {
            // Thousands of waiters may have left the same queue.
            tx.lists.changed.sort_unstable();
            tx.lists.changed.dedup();
        }
        while let Some(id) = tx.lists.changed.pop() {
            self.recheck(id, work, tx);
        }
        if unlikely(!tx.lists.again.is_empty()) {
            work.extend(tx.lists.again.drain(..));
        }
    }

    /// Adds to the work the other waits of tokens that were granted names. Such a grant can make
    /// another wait admissible, because a token needs no turn for a name that it holds.
    #[inline(never)]
    fn recheck_granted(&self, work: &mut WorkList, tx: &mut Transaction) {
        while let Some((token, names)) = tx.lists.granted.pop() {
            for name in &names {
                tx.steps += self.recheck_waits_of(&token, name, work);
            }
        }
    }

    /// Like [`WaitQueues::recheck`], for a name that may not have been read yet. Reading the name
    /// expires its leases, even without a waiter.
    pub(super) fn recheck_name(&mut self, name: &Name, work: &mut WorkList, tx: &mut Transaction) {
        self.count_expired(name, tx);
        let id = tx.entry(name);
        self.count_missing(id, tx);
        self.count_lost(tx);
        self.recheck(id, work, tx);
        if unlikely(self.queues.has_queue(name)) {
            let store = &mut tx.environment.store;
            if store.is_settling(name) || store.is_touched(name) {
                self.recheck_holders(id, name, work, tx);
            }
        }
    }

    /// Counts a lease that ended with the key's own expiry before an operation looked.
    fn count_expired(&self, name: &Name, tx: &mut Transaction) {
        if tx.has_read(name) {
            return;
        }
        let time_ms = self.schedule.time_of(name);
        let steady_ms = tx.steady_ms().saturating_add(CLOCKS_APART_MS);
        let due = time_ms.is_some_and(|ms| ms <= steady_ms);
        if due && tx.had_no_key(name) {
            tx.expirations += 1;
        }
    }

    /// Adds to the work the waits of this name's holders. A token can become a holder without an
    /// operation, for example by RENAME, MOVE, SWAPDB, RESTORE or a reload. Then it needs no turn
    /// here.
    #[inline(never)]
    fn recheck_holders(&self, id: EntryId, name: &Name, work: &mut WorkList, tx: &mut Transaction) {
        let Some(lock) = tx.lock(id) else { return };
        let mut steps = 0;
        // perf: not `queue_len`, which passes all waiters that are leaving.
        let positions = self.queues.position_count(name);
        if lock.holders().len() <= positions {
            for own in lock.holders().iter() {
                steps += self.recheck_waits_of(&own.token, name, work);
            }
        } else {
            let queue = self.queues.queue(name);
            let own = queue.filter(|(_, waiter)| lock.holder(&waiter.request.token).is_some());
            work.extend(own.map(|(position, _)| position));
            steps += positions as u64;
        }
        tx.steps += steps;
    }

    /// Adds to the work the waiters that may be admissible after something happened at this name:
    ///
    /// 1. the head of the queue;
    /// 2. the waits of the sole shared holder, which may wait for a conversion;
    /// 3. the first waiter whose lack of permits is met.
    fn recheck(&mut self, id: EntryId, work: &mut WorkList, tx: &mut Transaction) {
        tx.steps += 1;
        // perf: the clock is not read if there is no waiter.
        let steady_ms = if self.queues.is_empty() {
            0
        } else {
            tx.steady_ms()
        };
        let Some(name) = tx.name_of(id) else { return };
        let queue = tx.queue(name, &self.queues);
        let lock = tx.lock(id);
        let first = queue.and_then(|queue| match lock {
            Some(_) => self.queues.head(queue),
            // A key of another type ends all waits, including absent ones.
            None => self.queues.first(queue),
        });
        let Some(head) = first else {
            let several = lock.is_some_and(|lock| lock.holders().len() > 1);
            // Absent waiters are counted with the holders that go.
            if several || queue.is_some() || self.schedule.time_of(name).is_some() {
                work.schedule([id]);
            }
            return;
        };
        work.schedule([id]);
        if !lock.is_some_and(|lock| self.waits_on(head, name, lock, steady_ms)) {
            work.extend([head]);
        }
        let Some(lock) = lock else {
            // Another name may block the head too, but the error comes first.
            let names = self.queues.at(head).map(|waiter| waiter.names.as_slice());
            let by = names.and_then(|names| names.binary_search(name).ok());
            self.queues.set_blocked_by(head, by);
            return;
        };
        let mut steps = 0;
        let lacking = queue.and_then(|queue| self.queues.lacking(queue));
        if let Some(lacking) = lacking {
            steps += self.recheck_lacking(lacking, name, lock, work);
        }
        if unlikely(lock.mode() == Mode::Shared) {
            if let Some(sole) = lock.holders().only() {
                steps += self.recheck_waits_of(&sole.token, name, work);
            }
        }
        tx.steps += steps;
    }

    /// Returns true if a waiter need not be looked at: this name blocked it at the last look,
    /// another token holds the lock exclusively, and the wait is not over. The next waiter behind
    /// each hand-over is in this state.
    fn waits_on(&self, position: Position, name: &Name, lock: &Lock, steady_ms: u64) -> bool {
        let Some(waiter) = self.queues.at(position) else {
            return false;
        };
        lock.mode() == Mode::Exclusive
            && lock
                .holders()
                .only()
                .is_some_and(|own| own.token != waiter.request.token)
            && !waiter.is_over(steady_ms)
            && self.queues.blocked_by(position) == Some(name)
    }

    /// Adds to the work the waiters that may get the permits that they lack here. Returns the steps
    /// taken.
    #[inline(never)]
    fn recheck_lacking(
        &self,
        lacking: &Lacking,
        name: &Name,
        lock: &Lock,
        work: &mut WorkList,
    ) -> u64 {
        work.extend(first_lacking_nothing(lacking, lock));
        // A grant to the holder with the smallest limit replaces that limit, which binds all
        // others.
        let alone = lock.holders().alone_with_smallest_limit();
        alone.map_or(1, |own| 1 + self.recheck_waits_of(&own.token, name, work))
    }

    /// Adds to the work the waits of a token that this name blocks, each when the one before it was
    /// looked at. Returns the steps taken.
    #[inline(never)]
    fn recheck_waits_of(&self, token: &Token, name: &Name, work: &mut WorkList) -> u64 {
        let walk = Walk {
            token: token.clone(),
            name: name.clone(),
        };
        self.walk_on(walk, None, work);
        1
    }

    /// Continues the walks at a position that was looked at.
    #[inline(never)]
    fn continue_walks(&self, position: Position, work: &mut WorkList) {
        for walk in work.walks_at(position) {
            self.walk_on(walk, Some(position), work);
        }
    }

    /// Adds to the work the next wait of a walk behind `after`. `None` is no bound.
    #[inline(never)]
    fn walk_on(&self, walk: Walk, after: Option<Position>, work: &mut WorkList) {
        if let Some(next) = self.queues.next_blocked(&walk.token, &walk.name, after) {
            work.walk(next, walk);
        }
    }

    /// Ends the wait at a position if the waiter is admissible, refused, or out of time. Returns
    /// the names that the waiter leaves without a grant. Granted names are among the transaction's
    /// changes.
    fn try_admit(
        &mut self,
        position: Position,
        work: &mut WorkList,
        tx: &mut Transaction,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return Vec::new();
        };
        if unlikely(waiter.kind.is_absent()) {
            return self.end_absent(position, tx);
        }
        match self.waiter_admission(position, waiter, tx) {
            Ok(Admission::Granted { .. }) if unlikely(lacks_replicas(waiter, tx)) => {
                self.end_wait(position, Outcome::Refused(Refusal::TooFewReplicas), tx)
            }
            Ok(Admission::Granted { kept_fence })
                if likely(tx.environment.store.may_be_granted(waiter)) =>
            {
                let mode = waiter.request.mode;
                self.hand_over(position, kept_fence, tx);
                self.pass_over_those_behind(mode, work, tx);
                Vec::new()
            }
            Ok(Admission::Granted { .. }) => {
                self.end_wait(position, Outcome::Refused(Refusal::NoPermission), tx)
            }
            Ok(Admission::Blocked { by, lack, .. }) => {
                self.keep_waiting(position, by, lack, work, tx)
            }
            Err(refusal) => self.end_wait(position, Outcome::Refused(refusal), tx),
        }
    }

    /// Removes an absent waiter if its KEEP has ended, or if the key of one of its names was found
    /// to have another type. Returns the names that the waiter leaves.
    #[inline(never)]
    fn end_absent(&mut self, position: Position, tx: &mut Transaction) -> Vec<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return Vec::new();
        };
        let is_other_type = |name| tx.has_read(name) && tx.lock_at(name).is_none();
        if waiter.names.iter().any(is_other_type) {
            self.end_wait(position, Outcome::Refused(Refusal::WrongType), tx)
        } else if waiter.is_over(tx.steady_ms()) {
            self.time_out_at(position, tx)
        } else {
            Vec::new()
        }
    }

    /// Records that its name with the number `by` blocks a waiter, or ends the wait if its time is
    /// over. Returns the names that the waiter leaves.
    #[inline(never)]
    fn keep_waiting(
        &mut self,
        position: Position,
        by: usize,
        lack: Option<Lack>,
        work: &mut WorkList,
        tx: &mut Transaction,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return Vec::new();
        };
        if waiter.is_over(tx.steady_ms()) {
            return self.time_out_at(position, tx);
        }
        // Other names keep their schedule: it may be another look at a head that this operation
        // does not look at.
        let id = waiter.names.as_slice().get(by).map(|name| tx.entry(name));
        work.schedule(id.filter(|id| tx.was_away(*id)));
        let lacked_at = self.queues.lacks_at(position).cloned();
        self.queues.set_lack(position, Some(by), lack);
        if let Some(name) = lacked_at {
            self.recheck_next_lacking(&name, work, tx);
        }
        Vec::new()
    }

    /// Adds to the work the next waiter whose lack of permits is met here, after the previous one
    /// was found to lack something else.
    #[inline(never)]
    fn recheck_next_lacking(&self, name: &Name, work: &mut WorkList, tx: &mut Transaction) {
        let queue = tx.queue(name, &self.queues);
        let lacking = queue.and_then(|queue| self.queues.lacking(queue));
        let lock = tx.lock_at(name);
        work.extend(
            lacking
                .zip(lock)
                .and_then(|(lacking, lock)| first_lacking_nothing(lacking, lock)),
        );
    }

    /// Removes the waiter at a position from its queues and grants its names to it.
    pub(super) fn hand_over(
        &mut self,
        position: Position,
        kept_fence: Option<u64>,
        tx: &mut Transaction,
    ) {
        self.count_before_grant(position, tx);
        let names = self.queues.at(position).map(|waiter| &waiter.names);
        let queue = names.and_then(|names| tx.only_queue(names, &self.queues));
        let Some((waiter, waits_elsewhere)) = self.queues.take(position, queue) else {
            return;
        };
        if unlikely(waits_elsewhere) {
            let granted = (waiter.request.token.clone(), waiter.names.clone());
            tx.lists.granted.push(granted);
        }
        if unlikely(!tx.replica_waits.is_empty()) {
            tx.follow_hand_over(&waiter.request.token, &waiter.names);
        }
        self.counters.hand_overs += 1;
        let granted_ms = tx.steady_ms();
        let since_ms = waiter.since_ms;
        self.times.waits.record(granted_ms.saturating_sub(since_ms));
        self.contention
            .end_wait(&waiter.names, since_ms, granted_ms, &self.queues);
        if let WaiterKind::Place(place) = &waiter.kind {
            cold_path();
            self.hand_over_to_place(place, &waiter, kept_fence, tx);
            return;
        }
        let kept = kept_wait(position, &waiter);
        let Waiter {
            waiter_id,
            client_id,
            names,
            request,
            replicas,
            ..
        } = waiter;
        let own_names = tx.own(&names);
        let mut replaced = held_by(&request.token, own_names, tx);
        let to = Grantee::Client(client_id);
        let first_session = tx.sessions.next_id();
        let fence = self.grant_all(own_names, &request, kept_fence, to, tx);
        let sessions = first_session..tx.sessions.next_id();
        if unlikely(!replaced.is_empty()) {
            note_holds_after(&mut replaced, &request.token, tx);
        }
        let count = names.count();
        let hand_over = HandOver {
            grant: GrantReply {
                token: request.token,
                fence,
            },
            names,
            client_id,
            granted_ms,
            fence_origin: kept_fence.map_or(FenceOrigin::New, |_| FenceOrigin::Kept),
            take_back: TakeBack::IfUndelivered,
            replaced,
            sessions,
            kept,
        };
        match replicas {
            None => complete(waiter_id, Outcome::Granted(hand_over), count, tx),
            Some(replicas) => hold_back_hand_over(waiter_id, hand_over, *replicas, tx),
        }
    }

    /// Skips the waiters behind a grant that was just made, if the grant is exclusive and no wait
    /// is over. None of these waiters can be admissible. Other waits of the same token are
    /// rechecked separately.
    #[inline]
    fn pass_over_those_behind(&self, mode: Mode, work: &mut WorkList, tx: &mut Transaction) {
        let steady_ms = tx.steady_ms();
        let next_ms = self.queues.next_timeout_ms();
        let is_any_over = next_ms.is_some_and(|ms| ms <= steady_ms);
        if mode == Mode::Exclusive && !is_any_over {
            // These are the names of the grant only, because all other changes were looked at
            // before.
            work.schedule(tx.lists.changed.drain(..));
        }
    }

    /// Ends a wait whose time is over. After its BLOCK a blocked client with KEEP leaves its position
    /// absent, if `lock.max-tickets` has room. Returns the names where another waiter may be first now.
    #[inline(never)]
    pub(super) fn time_out_at(&mut self, position: Position, tx: &mut Transaction) -> Vec<Name> {
        let Some(absent) = self.absent_after_block(position, tx) else {
            return self.end_wait(position, Outcome::TimedOut, tx);
        };
        self.count_before_end(position, tx);
        let names = absent.names.as_slice().to_vec();
        if let Some(waiter) = self.queues.take_over(position, absent) {
            complete(waiter.waiter_id, Outcome::TimedOut, names.len(), tx);
        }
        names
    }

    /// Returns the waiter that stays at the position of a blocked client after its BLOCK; `None`: the
    /// position ends.
    fn absent_after_block(&mut self, position: Position, tx: &mut Transaction) -> Option<Waiter> {
        let waiter = self.queues.at(position)?;
        let WaiterKind::Blocked { keep_ms } = waiter.kind else {
            return None;
        };
        let absent = waiter.absent_until(tx.steady_ms().saturating_add(keep_ms?));
        let max_tickets = (tx.environment.limits)().max_tickets;
        let has_room = self.has_room_for_absent(&absent.names, max_tickets);
        has_room.then_some(absent)
    }

    /// Removes a waiter and notifies it of the outcome. Returns the names that the waiter leaves.
    #[inline(never)]
    pub(super) fn end_wait(
        &mut self,
        position: Position,
        outcome: Outcome,
        tx: &mut Transaction,
    ) -> Vec<Name> {
        self.count_before_end(position, tx);
        let Some(waiter) = self.queues.remove(position) else {
            return Vec::new();
        };
        // The newer wait goes on from the beginning of this one.
        if outcome != TAKEN_OVER {
            let (names, since_ms) = (&waiter.names, waiter.since_ms);
            self.contention
                .end_wait(names, since_ms, tx.steady_ms(), &self.queues);
        }
        if outcome == Outcome::TimedOut {
            match waiter.kind {
                WaiterKind::Blocked { .. } => self.counters.timeouts += 1,
                WaiterKind::Place(_) | WaiterKind::Absent { .. } => self.counters.lapses += 1,
            }
        }
        notify(&waiter, outcome, tx);
        waiter.names.as_slice().to_vec()
    }

    /// Leaves the waiters that are still on the work list to the timer.
    #[inline(never)]
    fn leave_to_timer(&mut self, work: &mut WorkList, tx: &mut Transaction) {
        let steady_ms = tx.steady_ms();
        for (position, walks) in work.drain() {
            self.backlog.insert(steady_ms, position, walks);
        }
    }

    /// Schedules the next settling of a name, and records its lock in its queue.
    ///
    /// 1. If the name has a queue or several holders, it is due when its next lease ends.
    /// 2. If a waiter needs the name and its lock may be on another server, it is due after
    ///    [`AWAY_RETRY_MS`].
    /// 3. Otherwise it is not scheduled.
    pub(super) fn reschedule(&mut self, id: EntryId, tx: &mut Transaction) {
        let now = tx.now();
        let now_ms = now.steady_ms;
        self.count_vanished(id, tx);
        let Some(name) = tx.name_of(id) else { return };
        let lock = tx.lock(id);
        let queue = tx.queue(name, &self.queues);
        let queue = queue.and_then(|queue| self.queues.to_settle(queue));
        let has_queue = queue.is_some();
        let ends = lock.and_then(|lock| {
            let matters = has_queue || lock.holders().len() > 1;
            lock.earliest_deadline_ms().filter(|_| matters)
        });
        let end_ms = ends.map(|ms| now.steady_after(ms));
        let retry_ms = (has_queue && tx.was_away(id)).then_some(now_ms + AWAY_RETRY_MS);
        match end_ms.or(retry_ms) {
            Some(due_ms) => self.schedule.set(name, due_ms, now_ms),
            None => self.schedule.remove(name),
        }
        if let Some(queue) = queue {
            queue.record(name, lock, end_ms, now_ms);
        }
    }
}

/// Returns the first of these waiters that lacks no permits now, by the limits of all holders. The
/// next such waiter is looked at after this one was granted, or was found to lack something else.
fn first_lacking_nothing(lacking: &Lacking, lock: &Lock) -> Option<Position> {
    lacking.first_met(lock.holders().permits(), lock.room())
}

/// Returns true if fewer replicas are online than a waiter asks for.
#[inline(always)]
fn lacks_replicas(waiter: &Waiter, tx: &mut Transaction) -> bool {
    match &waiter.replicas {
        Some(replicas) => !tx.environment.store.has_replicas(replicas.count),
        None => false,
    }
}

/// Returns the position and the waiter to restore if the hand-over is taken back, for a wait with
/// KEEP.
#[inline(always)]
fn kept_wait(position: Position, waiter: &Waiter) -> Option<Box<(Position, Waiter)>> {
    let is_kept = matches!(waiter.kind, WaiterKind::Blocked { keep_ms: Some(_) });
    unlikely(is_kept).then(|| copy_of(position, waiter))
}

#[inline(never)]
fn copy_of(position: Position, waiter: &Waiter) -> Box<(Position, Waiter)> {
    Box::new((position, waiter.clone()))
}

/// Notifies a waiter that was removed from its queues of the outcome. A place publishes its
/// notification only if it was cancelled or its key has another type.
pub(super) fn notify(waiter: &Waiter, outcome: Outcome, tx: &mut Transaction) {
    let count = waiter.names.count();
    match waiter.kind {
        WaiterKind::Blocked { .. } => complete(waiter.waiter_id, outcome, count, tx),
        WaiterKind::Absent { .. } => tx.steps += 1 + count as u64,
        WaiterKind::Place(_) => {
            tx.steps += 1 + count as u64;
            if let Outcome::Refused(Refusal::WrongType | Refusal::Cancelled) = outcome {
                publish(waiter, tx);
            }
        }
    }
}

fn complete(waiter_id: WaiterId, outcome: Outcome, names: usize, tx: &mut Transaction) {
    tx.steps += COMPLETION_STEPS + names as u64;
    tx.lists
        .deliveries
        .completions
        .push(Completion { waiter_id, outcome });
}
