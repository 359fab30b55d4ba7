//! Waits: the start of a wait, its continuation by a newer request of the same token, and its
//! cancellation.

use super::admission::{Admission, Turn};
use super::deadlock::{JoinAt, Newcomer};
use super::grants::Grantee;
use super::lock_table::WaitQueues;
use super::place::place;
use super::settle::{notify, TAKEN_OVER};
use super::wait_request::{WaitKind, WaitRequest, WaitStart};
use crate::decision::{Answer, Enqueued, Outcome};
use crate::hints::unlikely;
use crate::state::queue::{End, Position};
use crate::state::waiter::{Waiter, WaiterKind};
use crate::transaction::Transaction;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::Request;
use crate::values::token::Token;

/// The outcome of a wait that LOCK.CANCEL ends.
const CANCELLED: Outcome = Outcome::Refused(Refusal::Cancelled);

impl WaitQueues {
    /// Grants a request, or queues it. A token waits at most once for the same names, so a newer
    /// wait replaces the older one.
    ///
    /// # Errors
    /// The errors of [`WaitQueues::newcomer_admission`], then those of
    /// [`WaitQueues::check_replicas`] if the request can be granted, else [`Refusal::Deadlock`],
    /// [`Refusal::SessionDeadlock`], and [`Refusal::MaxWaiters`] or [`Refusal::MaxTickets`].
    #[inline(never)]
    pub(super) fn wait(
        &mut self,
        wait: WaitRequest<'_>,
        tx: &mut Transaction,
    ) -> Result<WaitStart, Refusal> {
        let WaitRequest {
            names,
            request,
            kind,
            caller,
            ..
        } = wait;
        let (upgrades, by) = match self.newcomer_admission(names, request, tx)? {
            Admission::Blocked { upgrades, by, .. } => (upgrades, by),
            Admission::Granted { kept_fence } => {
                self.check_replicas(wait.replicas, tx)?;
                let fence = self.grant_at_once(wait, kept_fence, tx);
                return Ok(WaitStart::Granted(fence));
            }
        };
        let older = self.kept_wait(names, &request.token, tx);
        let join_at = self.join_at(older, request, upgrades);
        if unlikely(older.is_some_and(|older| self.blocks_alone(older, join_at, wait, tx))) {
            self.check_replicas(wait.replicas, tx)?;
            let fence = self.grant_at_once(wait, None, tx);
            return Ok(WaitStart::Granted(fence));
        }
        if unlikely(upgrades > 0) && self.is_conversion_deadlock(names, request, tx) {
            return Err(Refusal::Deadlock);
        }
        let newcomer = Newcomer {
            client_id: caller.client_id,
            names,
            request,
            join_at,
            older,
        };
        // A place has no connection that could wait for itself.
        if matches!(kind, WaitKind::Block { .. }) && self.would_deadlock(&newcomer, tx) {
            return Err(Refusal::SessionDeadlock);
        }
        self.check_room(older, wait, tx)?;
        let waiter = waiter(wait, tx);
        match older {
            Some(older) => {
                let position = self.take_over(older, waiter, join_at, tx);
                Ok(WaitStart::Queued(Enqueued::TakenOver, position))
            }
            None => {
                let position = self.enqueue(waiter, join_at, Some(by), tx);
                Ok(WaitStart::Queued(Enqueued::New, position))
            }
        }
    }

    /// Returns true if only the older wait of its token blocks a request. That wait ends or goes on by
    /// the request, so the request need not wait.
    #[inline(never)]
    fn blocks_alone(
        &self,
        older: Position,
        join_at: JoinAt,
        WaitRequest { names, request, .. }: WaitRequest<'_>,
        tx: &mut Transaction,
    ) -> bool {
        let turn = match join_at {
            JoinAt::At(position) => Turn::At(position),
            JoinAt::First | JoinAt::Last => Turn::InsteadOf(older),
        };
        self.is_admissible(turn, names, request, tx)
    }

    /// Grants a request that need not wait. An older wait of its token for the same names ends.
    #[inline(never)]
    pub(super) fn grant_at_once(
        &mut self,
        wait: WaitRequest<'_>,
        kept_fence: Option<u64>,
        tx: &mut Transaction,
    ) -> u64 {
        let WaitRequest { names, request, .. } = wait;
        if let Some(older) = self.queues.wait_for(&request.token, names) {
            let since_ms = self.queues.at(older).map(|older| older.since_ms);
            self.end_older_wait(older, tx);
            let now_ms = tx.steady_ms();
            let since_ms = since_ms.unwrap_or(now_ms);
            self.contention
                .end_wait(names, since_ms, now_ms, &self.queues);
        }
        let to = Grantee::Client(wait.caller.client_id);
        self.grant(names, request, kept_fence, to, tx)
    }

    /// Returns where a wait joins the queues: at the position of its token's older wait if it takes
    /// as much, at the front for a conversion, else at the back.
    fn join_at(&self, older: Option<Position>, request: &Request, upgrades: usize) -> JoinAt {
        let kept = older.filter(|position| {
            let older = self.queues.at(*position);
            older.is_some_and(|older| request.takes_as_much_as(&older.request))
        });
        match kept {
            Some(position) => JoinAt::At(position),
            None if upgrades > 0 => JoinAt::First,
            None => JoinAt::Last,
        }
    }

    /// Returns the position of a token's wait for these names. A wait without a connection whose
    /// KEEP has ended is removed and does not count.
    fn kept_wait(
        &mut self,
        names: &Names,
        token: &Token,
        tx: &mut Transaction,
    ) -> Option<Position> {
        let position = self.queues.wait_for(token, names)?;
        self.unless_lapsed(position, tx)
    }

    /// Returns the same position, unless its waiter has no connection and its KEEP has ended. Then
    /// the waiter is removed.
    #[inline(never)]
    fn unless_lapsed(&mut self, position: Position, tx: &mut Transaction) -> Option<Position> {
        if !self.has_lapsed(position, tx) {
            return Some(position);
        }
        let vacated = self.end_wait(position, Outcome::TimedOut, tx);
        self.settle_vacated(&vacated, tx);
        None
    }

    /// Returns true if the waiter at a position has no connection and its KEEP has ended.
    fn has_lapsed(&self, position: Position, tx: &mut Transaction) -> bool {
        let waiter = self.queues.at(position);
        let waiter = waiter.filter(|waiter| !waiter.kind.is_blocked());
        waiter.is_some_and(|waiter| waiter.is_over(tx.steady_ms()))
    }

    /// Checks the limit on waiters of this kind for a new wait, or for one that continues at
    /// `older`.
    ///
    /// # Errors
    /// [`Refusal::MaxWaiters`] or [`Refusal::MaxTickets`]
    fn check_room(
        &self,
        older: Option<Position>,
        wait: WaitRequest<'_>,
        tx: &mut Transaction,
    ) -> Result<(), Refusal> {
        let WaitRequest {
            names,
            request,
            kind,
            ..
        } = wait;
        let older = older.and_then(|older| self.queues.at(older));
        let was_blocked = older.is_some_and(|older| older.kind.is_blocked());
        let limits = (tx.environment.limits)();
        let was_place = older.is_some() && !was_blocked;
        let (passes, count, most, refusal) = match kind {
            WaitKind::Block { .. } => (
                was_blocked,
                self.queues.blocked_len() + tx.replica_waits.len() + 1,
                limits.max_waiters,
                limits.max_waiters_refusal,
            ),
            WaitKind::Place { .. } => (
                older.is_some_and(|older| request.takes_as_much_as(&older.request)),
                self.queues.place_count() + if was_place { 0 } else { names.count() },
                limits.max_tickets,
                Refusal::MaxTickets,
            ),
        };
        let has_room = passes || most == 0 || count <= most;
        has_room.then_some(()).ok_or(refusal)
    }

    /// Returns true if `lock.max-tickets` admits one more waiter without a connection for these names.
    /// No client is waiting for an error, so a refusal is only counted.
    pub(super) fn has_room_for_absent(&mut self, names: &Names, max_tickets: usize) -> bool {
        let places = self.queues.place_count() + names.count();
        let has_room = max_tickets == 0 || places <= max_tickets;
        self.counters.max_tickets_refusals += u64::from(!has_room);
        has_room
    }

    fn enqueue(
        &mut self,
        waiter: Waiter,
        join_at: JoinAt,
        by: Option<usize>,
        tx: &mut Transaction,
    ) -> Position {
        let end = match join_at {
            JoinAt::First => End::Front,
            JoinAt::At(_) | JoinAt::Last => End::Back,
        };
        self.count_lost(tx);
        let queue = tx.only_queue(&waiter.names, &self.queues);
        let (position, new_queues) = self.queues.enqueue(waiter, end, by, queue);
        for name in new_queues {
            // Another present waiter may be before it.
            if self.queues.head_at(&name) == Some(position) {
                self.begin_queue(&name, tx);
            }
        }
        position
    }

    /// Schedules a name that had no present waiter before, and records its lock.
    #[inline(never)]
    fn begin_queue(&mut self, name: &Name, tx: &mut Transaction) {
        let id = tx.entry(name);
        self.reschedule(id, tx);
    }

    /// Replaces a token's older wait by a newer one. The newer wait continues at the older position
    /// if `join_at` says so, else it joins as a newcomer. Returns its position.
    #[inline(never)]
    fn take_over(
        &mut self,
        older: Position,
        newer: Waiter,
        join_at: JoinAt,
        tx: &mut Transaction,
    ) -> Position {
        let waited = self.queues.at(older);
        let since_ms = waited.map_or(newer.since_ms, |older| older.since_ms);
        let newer = Waiter { since_ms, ..newer };
        let position = if join_at == JoinAt::At(older) {
            let is_blocked = newer.kind.is_blocked();
            if let Some(name) = self.queues.lacks_at(older).cloned() {
                // Waiters behind it that lack permits may not have been looked at because of it.
                tx.settle_again(&name);
            }
            if let Some(waiter) = self.queues.take_over(older, newer) {
                let was_blocked = waiter.kind.is_blocked();
                self.counters.take_overs += u64::from(is_blocked || was_blocked);
                notify(&waiter, TAKEN_OVER, tx);
                if waiter.kind.is_absent() {
                    // Changes of a lock are not recorded while every position in its queue is
                    // absent.
                    waiter.names.iter().for_each(|name| tx.settle_again(name));
                }
            }
            older
        } else {
            self.end_older_wait(older, tx);
            self.enqueue(newer, join_at, None, tx)
        };
        // The newer wait may be admissible without the older one before it.
        tx.lists.again.push(position);
        position
    }

    /// Ends a wait because a newer wait of its token replaces it. Waiters behind the ended wait may
    /// be admissible now.
    fn end_older_wait(&mut self, older: Position, tx: &mut Transaction) {
        self.counters.take_overs += 1;
        let vacated = self.end_wait(older, TAKEN_OVER, tx);
        self.settle_vacated(&vacated, tx);
    }

    /// Settles the names that a waiter has left, except names with no queue and nothing scheduled.
    /// The locks of these need no look.
    fn settle_vacated(&self, names: &[Name], tx: &mut Transaction) {
        for name in names {
            if self.queues.has_queue(name) || self.schedule.time_of(name).is_some() {
                tx.settle_again(name);
            }
        }
    }

    /// Cancels all waits of a token that need one of these names.
    #[inline(never)]
    pub(super) fn cancel(
        &mut self,
        names: &Names,
        token: &Token,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        let mut cancelled = 0_u64;
        let (completed, published) = (
            tx.lists.deliveries.completions.len(),
            tx.lists.deliveries.publications.len(),
        );
        for name in names {
            tx.lock_at(name).ok_or(Refusal::WrongType)?;
            let waits = self.queues.waits_at(token, name);
            tx.lists.deliveries.completions.reserve(waits.len());
            // perf: the last wait first, because removing the end of a queue moves no other entry.
            // A token may have thousands of waits.
            for position in waits.into_iter().rev() {
                let lapsed = self.has_lapsed(position, tx);
                let outcome = if lapsed { Outcome::TimedOut } else { CANCELLED };
                let vacated = self.end_wait(position, outcome, tx);
                self.settle_vacated(&vacated, tx);
                cancelled += u64::from(!lapsed);
            }
        }
        if let Some(completed) = tx.lists.deliveries.completions.get_mut(completed..) {
            completed.reverse();
        }
        if let Some(published) = tx.lists.deliveries.publications.get_mut(published..) {
            published.reverse();
        }
        self.counters.cancels += cancelled;
        Ok(Answer::Count(usize::from(cancelled > 0)))
    }
}

/// Returns the waiter of a request that begins to wait.
fn waiter(wait: WaitRequest<'_>, tx: &mut Transaction) -> Waiter {
    let WaitRequest {
        names,
        request,
        kind,
        replicas,
        caller,
    } = wait;
    let now_ms = tx.steady_ms();
    let (kind, client_id, timeout_ms) = match kind {
        WaitKind::Block { block_ms, keep_ms } => {
            let timeout_ms = (block_ms > 0).then(|| now_ms.saturating_add(block_ms));
            (
                WaiterKind::Blocked { keep_ms },
                caller.client_id,
                timeout_ms,
            )
        }
        WaitKind::Place {
            keep_ms,
            notification,
        } => {
            let place = place(keep_ms, notification, now_ms, tx);
            (WaiterKind::Place(place), 0, None)
        }
    };
    Waiter {
        waiter_id: caller.waiter_id,
        client_id,
        kind,
        names: names.clone(),
        request: request.clone(),
        since_ms: now_ms,
        timeout_ms,
        replicas: replicas.map(Box::new),
    }
}
