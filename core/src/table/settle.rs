//! Settling: what follows at other waiters from what happened at a name.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use super::admission::Admission;
use super::grants::{held_by, Grantee};
use super::lock_table::Waiting;
use crate::branch::{likely, seldom, unlikely};
use crate::decision::{Completion, Outcome, Publication};
use crate::state::hand_over::{HandOver, Origin};
use crate::state::place::{Place, Stand};
use crate::state::queue::{Position, Waiter, WaiterId};
use crate::transaction::{EntryId, Transaction};
use crate::values::grant::Grant;
use crate::values::holder::Mode;
use crate::values::lock::{Lack, Lock};
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::token::Token;

/// After how many steps an operation grants to no further waiter.
pub(super) const MOST_STEPS: u64 = 2048;

/// How many steps it counts to answer a waiter, which takes the server longer than all the rest.
const COMPLETION_STEPS: u64 = 16;

/// The steps that a grant to a place counts as.
///
/// perf: 30 us with its effect. 2,048 steps of such grants took 13 to 22 ms when each counted as one.
const PLACE_STEPS: u64 = 8;

/// When to look again at a queue where nothing may be granted now, in ms. What stands in the way, as
/// the migration of a slot, takes longer than that.
pub(super) const RETRY_MS: u64 = 20;

/// By how much the wall clock may be ahead of the steady one, in ms: both are cut to whole ones.
const CLOCKS_APART_MS: u64 = 1;

/// How many positions a work list may have room for to be kept for the next one.
const MOST_KEPT: usize = 256;

/// What an operation still has to look at: the first in queue first, whoever brought it up.
pub(super) struct WorkList {
    positions: BinaryHeap<Reverse<Position>>,
    /// Names at which something may be due at another time than before.
    names: SmallVec<[EntryId; 4]>,
}

impl WorkList {
    /// One without any work.
    pub(super) fn new(tx: &mut Transaction<'_, '_, '_>) -> Self {
        Self {
            positions: std::mem::take(&mut tx.lists.heap),
            names: SmallVec::new(),
        }
    }

    /// Adds waiters to look at.
    pub(super) fn extend(&mut self, positions: impl IntoIterator<Item = Position>) {
        self.positions.extend(positions.into_iter().map(Reverse));
    }

    /// Takes out the first in queue, as often as it was added.
    fn pop_first(&mut self) -> Option<Position> {
        let first = self.positions.pop()?;
        while self.positions.peek() == Some(&first) {
            self.positions.pop();
        }
        Some(first.0)
    }

    /// The names, each once.
    fn take_names(&mut self) -> SmallVec<[EntryId; 4]> {
        let mut names = std::mem::take(&mut self.names);
        if unlikely(names.len() > 1) {
            names.sort_unstable();
            names.dedup();
        }
        names
    }
}

impl Waiting {
    /// Settles those of an operation's names where that was still to be done.
    #[inline(never)]
    pub(super) fn settle_unsettled(&mut self, names: &Names, tx: &mut Transaction<'_, '_, '_>) {
        if unlikely(self.queues.is_anyone_leaving()) {
            self.settle_left(names, tx);
        }
        let unsettled = self.unsettled(names, tx);
        self.settle(&unsettled, tx);
    }

    /// Settles those of these names where the first waiters have left and weren't taken out yet. They are taken out
    /// here.
    #[inline(never)]
    fn settle_left(&mut self, names: &Names, tx: &mut Transaction<'_, '_, '_>) {
        let is_left = |name: &&Name| self.queues.pass_over_left(name) > 0;
        let left: Vec<Name> = names.iter().filter(is_left).cloned().collect();
        self.settle(&left, tx);
    }

    /// Of these names, those where somebody waits and where something has happened, or was to happen
    /// by now: all others were settled as that happened.
    fn unsettled(&self, names: &Names, tx: &mut Transaction<'_, '_, '_>) -> Vec<Name> {
        let next_ms = self.schedule.next_ms().into_iter();
        let next_ms = next_ms.chain(self.queues.next_timeout_ms()).min();
        if next_ms.is_none() && tx.nothing_touched {
            return Vec::new();
        }
        let steady_ms = tx.steady_ms();
        let is_due = |ms: Option<u64>| ms.is_some_and(|ms| ms <= steady_ms);
        if !is_due(next_ms) && tx.nothing_touched {
            return Vec::new();
        }
        let unsettled = names.iter().filter(|name| {
            let head = self
                .queues
                .head(name)
                .and_then(|position| self.queues.at(position));
            head.is_some_and(|head| {
                head.is_over(steady_ms)
                    || is_due(self.schedule.time_of(name))
                    || tx.environment.store.is_touched(name)
            })
        });
        unsettled.cloned().collect()
    }

    /// Settles these names, and those whose locks were changed meanwhile.
    #[inline(always)]
    pub(super) fn settle(&mut self, names: &[Name], tx: &mut Transaction<'_, '_, '_>) {
        if names.is_empty() && self.is_idle() && !tx.any_shared {
            tx.lists.changed.clear();
            if unlikely(!tx.lists.granted.is_empty()) {
                tx.lists.granted.clear();
            }
        }
        if !names.is_empty() || !tx.lists.changed.is_empty() || !tx.lists.again.is_empty() {
            self.settle_all(names, tx);
        }
    }

    #[inline(never)]
    fn settle_all(&mut self, names: &[Name], tx: &mut Transaction<'_, '_, '_>) {
        let mut work = WorkList::new(tx);
        for name in names {
            self.recheck_name(name, &mut work, tx);
        }
        self.process(work, tx);
    }

    /// Whether nobody waits and nothing is due at any time: no change concerns anybody then, but for
    /// the ends of leases that have others beside them.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.is_empty() && self.schedule.is_empty()
    }

    /// Puts on the work what an operation has brought up.
    fn recheck_changes(&mut self, work: &mut WorkList, tx: &mut Transaction<'_, '_, '_>) {
        if unlikely(!tx.lists.granted.is_empty()) {
            self.recheck_granted(work, tx);
        }
        if unlikely(tx.lists.changed.len() > 1) {
            // Thousands may have left one and the same queue.
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

    /// As [`Waiting::recheck`], of a name that may not have been read yet: that ends its ended leases,
    /// whether anybody waits or not.
    pub(super) fn recheck_name(
        &mut self,
        name: &Name,
        work: &mut WorkList,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        self.count_expired(name, tx);
        let id = tx.entry(name);
        self.recheck(id, work, tx);
        if unlikely(self.queues.has_queue(name)) {
            let store = &mut tx.environment.store;
            if store.is_settling(name) || store.is_touched(name) {
                self.recheck_holders(id, name, work, tx);
            }
        }
    }

    /// Puts on the work the waits of those who hold this name. A token can come to hold it without an operation, as
    /// by RENAME, MOVE, SWAPDB, RESTORE or a reload, and then needs no turn there.
    #[inline(never)]
    fn recheck_holders(
        &self,
        id: EntryId,
        name: &Name,
        work: &mut WorkList,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let Some(lock) = tx.lock(id) else { return };
        let mut steps = 0;
        if lock.holders().len() <= self.queues.queue_len(name) {
            for own in lock.holders().iter() {
                steps += self.recheck_waits_of(&own.token, name, work);
            }
        } else {
            let queue = self.queues.queue(name);
            let own = queue.filter(|(_, waiter)| lock.holder(&waiter.request.token).is_some());
            work.extend(own.map(|(position, _)| position));
            steps += self.queues.queue_len(name) as u64;
        }
        tx.steps += steps;
    }

    /// Puts on the work who may be admitted after something happened at this name: the first in its
    /// queue, who waits to be alone there where it is alone now, and the first who lacks no permits there
    /// any more.
    fn recheck(&mut self, id: EntryId, work: &mut WorkList, tx: &mut Transaction<'_, '_, '_>) {
        tx.steps += 1;
        // Where nobody waits no clock is looked at.
        let steady_ms = if self.queues.is_empty() {
            0
        } else {
            tx.steady_ms()
        };
        let Some(name) = tx.name_of(id) else { return };
        let lock = tx.lock(id);
        let first = match lock {
            Some(_) => self.queues.head(name),
            // All are to be told of another type, and those where nobody stands are to go.
            None => self.queues.first(name),
        };
        let Some(head) = first else {
            let several = lock.is_some_and(|lock| lock.holders().len() > 1);
            if several || self.schedule.time_of(name).is_some() {
                work.names.push(id);
            }
            return;
        };
        work.names.push(id);
        if !lock.is_some_and(|lock| self.waits_on(head, name, lock, steady_ms)) {
            work.extend([head]);
        }
        let Some(lock) = lock else {
            // Whatever else holds it up: it is to be told of this first.
            let names = self.queues.at(head).map(|waiter| waiter.names.as_slice());
            let by = names.and_then(|names| names.binary_search(name).ok());
            self.queues.set_blocked_by(head, by);
            return;
        };
        let mut steps = 0;
        if unlikely(self.queues.lacking(name).is_some()) {
            steps += self.recheck_lacking(name, lock, work);
        }
        if unlikely(lock.mode() == Mode::Shared) {
            if let Some(sole) = lock.holders().only() {
                steps += self.recheck_waits_of(&sole.token, name, work);
            }
        }
        tx.steps += steps;
    }

    /// Puts on the work who may have all permits here that it lacked. Returns the steps that it took.
    #[inline(never)]
    fn recheck_lacking(&self, name: &Name, lock: &Lock, work: &mut WorkList) -> u64 {
        work.extend(self.first_lacking_nothing(name, lock));
        // Its own limit, which binds all others, goes with a grant to it.
        let alone = lock.holders().alone_with_smallest_limit();
        alone.map_or(1, |own| 1 + self.recheck_waits_of(&own.token, name, work))
    }

    /// The first in queue that lacked permits here and doesn't any more, by the limits of all holders. The
    /// next one is looked at once this one is granted, or is found to wait for something else.
    fn first_lacking_nothing(&self, name: &Name, lock: &Lock) -> Option<Position> {
        let lacking = self.queues.lacking(name)?;
        lacking.first_met(lock.holders().permits(), lock.room())
    }

    /// Whether a waiter need not be looked at: this name blocked it when it was looked at last, another token
    /// holds the lock alone, and its time isn't over. So it is with the next one behind each hand-over.
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

    /// Puts on the work the waits of a token that were held up by this name. Tells how many steps
    /// that took.
    #[inline(never)]
    fn recheck_waits_of(&self, token: &Token, name: &Name, work: &mut WorkList) -> u64 {
        let waits = self.queues.waits_at(token, name).into_iter();
        work.extend(waits.filter(|position| self.queues.blocked_by(*position) == Some(name)));
        let shorter = self
            .queues
            .position_count(name)
            .min(self.queues.waits_of(token));
        shorter as u64
    }

    /// Looks at those on the work, the first in queue first, and at whom that brings up, until
    /// nobody is left or the operation has taken enough steps.
    pub(super) fn process(&mut self, mut work: WorkList, tx: &mut Transaction<'_, '_, '_>) {
        self.recheck_changes(&mut work, tx);
        while tx.steps < MOST_STEPS {
            let Some(position) = work.pop_first() else {
                break;
            };
            for name in self.try_admit(position, &mut work, tx) {
                self.recheck_name(&name, &mut work, tx);
            }
            self.recheck_changes(&mut work, tx);
        }
        for id in work.take_names() {
            self.reschedule(id, tx);
        }
        if unlikely(!work.positions.is_empty()) {
            self.leave_to_timer(&mut work, tx);
        }
        if work.positions.capacity() <= MOST_KEPT {
            tx.lists.heap = work.positions;
        }
        debug_assert!(
            tx.lists.changed.is_empty(),
            "a change that nobody looked at"
        );
    }

    /// Leaves those who are still on the work to be looked at without an operation.
    #[inline(never)]
    fn leave_to_timer(&mut self, work: &mut WorkList, tx: &mut Transaction<'_, '_, '_>) {
        let steady_ms = tx.steady_ms();
        let left = work.positions.drain();
        self.pending
            .extend(left.map(|Reverse(position)| (steady_ms, position)));
    }

    /// A grant to a token can be all that another wait of it was held up for: what a token holds
    /// needs no turn.
    #[inline(never)]
    fn recheck_granted(&self, work: &mut WorkList, tx: &mut Transaction<'_, '_, '_>) {
        while let Some((token, names)) = tx.lists.granted.pop() {
            if self.queues.waits_of(&token) == 0 {
                continue;
            }
            for name in &names {
                tx.steps += self.recheck_waits_of(&token, name, work);
            }
        }
    }

    /// When a name is to be settled again: as its next lease ends, if somebody waits for that or other
    /// leases go on; or soon, where a lock is away that somebody needs.
    pub(super) fn reschedule(&mut self, id: EntryId, tx: &mut Transaction<'_, '_, '_>) {
        let moment = tx.moment();
        let now_ms = moment.steady_ms;
        let Some(name) = tx.name_of(id) else { return };
        let lock = tx.lock(id);
        let queue = self.queues.to_settle(name);
        let has_queue = queue.is_some();
        let ends = lock.and_then(|lock| {
            let matters = has_queue || lock.holders().len() > 1;
            lock.earliest_deadline_ms().filter(|_| matters)
        });
        let end_ms = ends.map(|ms| moment.steady_after(ms));
        let retry_ms = (has_queue && tx.was_away(id)).then_some(now_ms + RETRY_MS);
        match end_ms.or(retry_ms) {
            Some(due_ms) => self.schedule.set(name, due_ms, now_ms),
            None => self.schedule.remove(name),
        }
        if let Some(queue) = queue {
            queue.record(name, lock, end_ms, now_ms);
        }
    }

    /// A lease may have ended by the key's own expiry before anybody looked.
    fn count_expired(&self, name: &Name, tx: &mut Transaction<'_, '_, '_>) {
        if tx.has_read(name) {
            return;
        }
        let time_ms = self.schedule.time_of(name);
        let steady_ms = tx.steady_ms().saturating_add(CLOCKS_APART_MS);
        let due = time_ms.is_some_and(|ms| ms <= steady_ms);
        if due && tx.was_absent(name) {
            tx.expirations += 1;
        }
    }

    /// Lets a waiter go, if its wait is over: the names that it leaves as they were. Those that it is
    /// granted are among the changes.
    fn try_admit(
        &mut self,
        position: Position,
        work: &mut WorkList,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return Vec::new();
        };
        if unlikely(waiter.stand.is_absent()) {
            return self.end_absent(position, tx);
        }
        match self.waiter_admission(position, waiter, tx) {
            Ok(Admission::Granted { kept_fence })
                if likely(tx.environment.store.permits(waiter)) =>
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

    /// Lets a waiter wait on whom its name with the number `by` blocks, unless its time is over; the names that
    /// it leaves.
    #[inline(never)]
    fn keep_waiting(
        &mut self,
        position: Position,
        by: usize,
        lack: Option<Lack>,
        work: &mut WorkList,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return Vec::new();
        };
        if waiter.is_over(tx.steady_ms()) {
            return self.end_wait(position, Outcome::TimedOut, tx);
        }
        let name = waiter.names.as_slice().get(by);
        work.names.extend(name.map(|name| tx.entry(name)));
        let lacked_at = self.queues.lacks_at(position).cloned();
        self.queues.set_lack(position, Some(by), lack);
        if let Some(name) = lacked_at {
            self.recheck_next_lacking(&name, work, tx);
        }
        Vec::new()
    }

    /// Puts on the work who may have all permits here, after the one that was looked at lacks something else.
    #[inline(never)]
    fn recheck_next_lacking(
        &self,
        name: &Name,
        work: &mut WorkList,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let lock = tx.lock_at(name);
        work.extend(lock.and_then(|lock| self.first_lacking_nothing(name, lock)));
    }

    /// After a grant that was just made: where it is exclusive nobody behind it can be admitted, nor told of
    /// anything but that its time is over, so nobody is looked at. Whether other waits of the same token can be is
    /// another matter.
    #[inline]
    fn pass_over_those_behind(
        &self,
        mode: Mode,
        work: &mut WorkList,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let steady_ms = tx.steady_ms();
        let next_ms = self.queues.next_timeout_ms();
        let is_any_over = next_ms.is_some_and(|ms| ms <= steady_ms);
        if mode == Mode::Exclusive && !is_any_over {
            // None but the names of the grant: all others were looked at before.
            work.names.extend(tx.lists.changed.drain(..));
        }
    }

    /// Takes a position out where nobody stands, if its time is over or another type's key was found at
    /// one of its names; the names that it leaves.
    #[inline(never)]
    fn end_absent(&mut self, position: Position, tx: &mut Transaction<'_, '_, '_>) -> Vec<Name> {
        let Some(waiter) = self.queues.at(position) else {
            return Vec::new();
        };
        let is_other_type = |name| tx.has_read(name) && tx.lock_at(name).is_none();
        if waiter.names.iter().any(is_other_type) {
            self.end_wait(position, Outcome::Refused(Refusal::WrongType), tx)
        } else if waiter.is_over(tx.steady_ms()) {
            self.end_wait(position, Outcome::TimedOut, tx)
        } else {
            Vec::new()
        }
    }

    pub(super) fn hand_over(
        &mut self,
        position: Position,
        kept_fence: Option<u64>,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let Some((waiter, waits_elsewhere)) = self.queues.take(position) else {
            return;
        };
        if unlikely(waits_elsewhere) {
            let granted = (waiter.request.token.clone(), waiter.names.clone());
            tx.lists.granted.push(granted);
        }
        self.counters.hand_overs += 1;
        let waited_ms = tx.steady_ms().saturating_sub(waiter.since_ms);
        self.times.waits.record(waited_ms);
        if let Stand::Place(place) = &waiter.stand {
            seldom();
            self.hand_over_to_place(place, &waiter, kept_fence, tx);
            return;
        }
        let place = kept_place(position, &waiter);
        let Waiter {
            waiter_id,
            client_id,
            names,
            request,
            ..
        } = waiter;
        let replaced = held_by(&request.token, &names, tx);
        let to = Grantee::Client(client_id);
        let fence = self.grant_all(&names, &request, kept_fence, to, tx);
        let count = names.count();
        let outcome = Outcome::Granted(HandOver {
            grant: Grant {
                token: request.token,
                fence,
            },
            names,
            client_id,
            origin: kept_fence.map_or(Origin::New, |_| Origin::Kept),
            replaced,
            place,
        });
        complete(waiter_id, outcome, count, tx);
    }

    #[inline(never)]
    fn hand_over_to_place(
        &mut self,
        place: &Place,
        waiter: &Waiter,
        kept_fence: Option<u64>,
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let Waiter { names, request, .. } = waiter;
        let lease_ms = place.lease_ms(request);
        self.grant_all(names, request, kept_fence, Grantee::Place { lease_ms }, tx);
        tx.steps += PLACE_STEPS + names.count() as u64;
        publish(waiter, tx);
    }

    /// Takes a waiter out, with an answer to its connection; the names that it leaves.
    #[inline(never)]
    pub(super) fn end_wait(
        &mut self,
        position: Position,
        outcome: Outcome,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.remove(position) else {
            return Vec::new();
        };
        if outcome == Outcome::TimedOut {
            match waiter.stand {
                Stand::Blocked { .. } => self.counters.timeouts += 1,
                Stand::Place(_) | Stand::Absent { .. } => self.counters.lapses += 1,
            }
        }
        tell(&waiter, outcome, tx);
        waiter.names.as_slice().to_vec()
    }
}

/// What a waiter has back if its hand-over is taken back, because its connection was lost.
#[inline(always)]
fn kept_place(position: Position, waiter: &Waiter) -> Option<Box<(Position, Waiter)>> {
    let is_kept = matches!(waiter.stand, Stand::Blocked { keep_ms: Some(_) });
    unlikely(is_kept).then(|| copy_of(position, waiter))
}

#[inline(never)]
fn copy_of(position: Position, waiter: &Waiter) -> Box<(Position, Waiter)> {
    Box::new((position, waiter.clone()))
}

/// Tells one who is out of the queue how its wait ended. Of a place nothing is told but that another type
/// lies there, or that it was given up, as it asked for.
pub(super) fn tell(waiter: &Waiter, outcome: Outcome, tx: &mut Transaction<'_, '_, '_>) {
    let count = waiter.names.count();
    match waiter.stand {
        Stand::Blocked { .. } => complete(waiter.waiter_id, outcome, count, tx),
        Stand::Absent { .. } => tx.steps += 1 + count as u64,
        Stand::Place(_) => {
            tx.steps += 1 + count as u64;
            if let Outcome::Refused(Refusal::WrongType | Refusal::Cancelled) = outcome {
                publish(waiter, tx);
            }
        }
    }
}

/// Has published what a place asked for.
fn publish(waiter: &Waiter, tx: &mut Transaction<'_, '_, '_>) {
    let Stand::Place(place) = &waiter.stand else {
        return;
    };
    let Place { notice, user, .. } = place.as_ref();
    let publication = notice.clone().map(|notice| Publication {
        token: waiter.request.token.clone(),
        names: waiter.names.clone(),
        notice,
        user: user.clone(),
    });
    tx.lists.deliveries.publications.extend(publication);
}

fn complete(waiter_id: WaiterId, outcome: Outcome, names: usize, tx: &mut Transaction<'_, '_, '_>) {
    tx.steps += COMPLETION_STEPS + names as u64;
    tx.lists
        .deliveries
        .completions
        .push(Completion { waiter_id, outcome });
}
