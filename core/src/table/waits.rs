//! How a request that can't be granted now begins to wait.

use super::admission::Admission;
use super::circles::{Newcomer, Rank};
use super::grants::Grantee;
use super::lock_table::Waiting;
use super::settle::tell;
use crate::branch::unlikely;
use crate::decision::{Answer, Arrival, Caller, Outcome, Publication};
use crate::state::place::{Place, Stand};
use crate::state::queue::{End, Position, Waiter};
use crate::transaction::Transaction;
use crate::values::holder::Mode;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::notice::Notice;
use crate::values::refusal::Refusal;
use crate::values::request::Request;
use crate::values::token::Token;

/// What the older wait of a token is told.
const TAKEN_OVER: Outcome = Outcome::Refused(Refusal::TakenOver);

/// What a wait is told that is given up.
const CANCELLED: Outcome = Outcome::Refused(Refusal::Cancelled);

/// How one waits who can't be granted now.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// With its connection, for so long; 0: for ever. If that is lost its place stays for so long.
    Block { block_ms: u64, keep_ms: Option<u64> },
    /// In a place that is kept for so long, and of which this is published.
    Place {
        keep_ms: u64,
        notice: Option<&'a Notice>,
    },
}

/// What became of a request that may be waited for.
pub(super) enum Waited {
    /// It was granted at once, with this fence.
    Granted(u64),
    /// Its token waits, at this position.
    Queued(Arrival, Position),
}

/// One who begins to wait.
fn waiter(
    names: &Names,
    request: &Request,
    way: Way<'_>,
    caller: Caller,
    tx: &mut Transaction<'_, '_, '_>,
) -> Waiter {
    let now_ms = tx.steady_ms();
    let (stand, client_id, timeout_ms) = match way {
        Way::Block { block_ms, keep_ms } => {
            let timeout_ms = (block_ms > 0).then(|| now_ms.saturating_add(block_ms));
            (Stand::Blocked { keep_ms }, caller.client_id, timeout_ms)
        }
        Way::Place { keep_ms, notice } => {
            let place = place(keep_ms, notice, now_ms, tx);
            (Stand::Place(place), 0, None)
        }
    };
    Waiter {
        waiter_id: caller.waiter_id,
        client_id,
        stand,
        names: names.clone(),
        request: request.clone(),
        since_ms: now_ms,
        timeout_ms,
    }
}

#[inline(never)]
fn place(
    keep_ms: u64,
    notice: Option<&Notice>,
    now_ms: u64,
    tx: &mut Transaction<'_, '_, '_>,
) -> Box<Place> {
    Box::new(Place {
        keep_ms,
        until_ms: now_ms.saturating_add(keep_ms),
        user: tx.environment.store.user(),
        notice: notice.cloned(),
    })
}

/// When a wait is over that goes on at the position of an older one. A connection that comes back to
/// where nobody stands has only what is left of the BLOCK that began there.
fn taken_up_timeout_ms(older: &Waiter, newer: &Waiter) -> Option<u64> {
    let begun_ms = older.timeout_ms.filter(|_| older.stand.is_absent());
    let begun_ms = begun_ms.filter(|_| newer.stand.is_blocked());
    begun_ms.into_iter().chain(newer.timeout_ms).min()
}

impl Waiting {
    #[inline(never)]
    pub(super) fn wait(
        &mut self,
        names: &Names,
        request: &Request,
        way: Way<'_>,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Waited, Refusal> {
        let (upgrades, by) = match self.newcomer_admission(names, request, tx)? {
            Admission::Blocked { upgrades, by, .. } => (upgrades, by),
            Admission::Granted { kept_fence } => {
                let fence = self.grant_at_once(names, request, kept_fence, caller, tx);
                return Ok(Waited::Granted(fence));
            }
        };
        if unlikely(upgrades > 0) && self.would_deadlock(names, request, tx) {
            return Err(Refusal::Deadlock);
        }
        let older = self.kept_wait(names, &request.token, tx);
        let rank = self.rank(older, request, upgrades);
        let newcomer = Newcomer {
            client_id: caller.client_id,
            names,
            request,
            rank,
            older,
        };
        // A place has no connection that could wait for itself.
        if matches!(way, Way::Block { .. }) && self.closes_circle(&newcomer, tx) {
            return Err(Refusal::Circle);
        }
        self.check_room(older, names, request, way, tx)?;
        let waiter = waiter(names, request, way, caller, tx);
        match older {
            Some(older) => {
                let position = self.take_over(older, waiter, rank, tx);
                Ok(Waited::Queued(Arrival::TakenOver, position))
            }
            None => {
                let position = self.enqueue(waiter, rank, Some(by), tx);
                Ok(Waited::Queued(Arrival::New, position))
            }
        }
    }

    /// Grants one who would have waited; an older wait of its token for the same names is over.
    #[inline(never)]
    fn grant_at_once(
        &mut self,
        names: &Names,
        request: &Request,
        kept_fence: Option<u64>,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> u64 {
        if let Some(older) = self.queues.wait_for(&request.token, names) {
            self.end_older_wait(older, tx);
        }
        let to = Grantee::Client(caller.client_id);
        self.grant(names, request, kept_fence, to, tx)
    }

    /// Where a wait begins: in the place of its token's older one, if it takes as much.
    fn rank(&self, older: Option<Position>, request: &Request, upgrades: usize) -> Rank {
        let kept = older.filter(|position| {
            let older = self.queues.at(*position);
            older.is_some_and(|older| request.takes_as_much_as(&older.request))
        });
        match kept {
            Some(position) => Rank::At(position),
            None if upgrades > 0 => Rank::First,
            None => Rank::Last,
        }
    }

    /// Grants, or tells the place. Of what was granted to this very place meanwhile the answer tells, and
    /// nothing is published.
    #[inline(never)]
    pub(super) fn queue(
        &mut self,
        names: &Names,
        request: &Request,
        way: Way<'_>,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        let answer = self.place_or_grant(names, request, way, caller, tx)?;
        if let Answer::Granted(_) = answer {
            let is_other = |it: &Publication| it.token != request.token || it.names != *names;
            tx.lists.deliveries.publications.retain(is_other);
        }
        Ok(answer)
    }

    /// The place is the greatest where it has several, and told once all is settled that follows from its
    /// having been taken. It may have been granted by that.
    fn place_or_grant(
        &mut self,
        names: &Names,
        request: &Request,
        way: Way<'_>,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        let arrival = match self.wait(names, request, way, caller, tx)? {
            Waited::Granted(fence) => return Ok(Answer::Granted(fence)),
            Waited::Queued(arrival, _) => arrival,
        };
        self.settle(&[], tx);
        let Some(position) = self.queues.wait_for(&request.token, names) else {
            return self.claim(names, request, caller, tx);
        };
        let ranks = names.iter().map(|name| self.queues.rank(name, position));
        Ok(Answer::Place(ranks.max().unwrap_or(0), arrival))
    }

    /// Claims what was granted to a place that is gone. One to which nothing was granted has lost its
    /// rights.
    fn claim(
        &mut self,
        names: &Names,
        request: &Request,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        match self.newcomer_admission(names, request, tx)? {
            Admission::Granted {
                kept_fence: kept @ Some(_),
            } => {
                let to = Grantee::Client(caller.client_id);
                Ok(Answer::Granted(self.grant(names, request, kept, to, tx)))
            }
            Admission::Granted { kept_fence: None } | Admission::Blocked { .. } => {
                Err(Refusal::NoPermission)
            }
        }
    }

    /// The wait of a token for these names. A place that was kept for too short a time is none: it is
    /// taken out here, should that not have been done yet.
    fn kept_wait(
        &mut self,
        names: &Names,
        token: &Token,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Option<Position> {
        let position = self.queues.wait_for(token, names)?;
        self.unless_lapsed(position, tx)
    }

    /// The same position, unless that was kept for too short a time: then it is taken out.
    #[inline(never)]
    fn unless_lapsed(
        &mut self,
        position: Position,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Option<Position> {
        if !self.has_lapsed(position, tx) {
            return Some(position);
        }
        let vacated = self.end_wait(position, Outcome::TimedOut, tx);
        self.settle_vacated(&vacated, tx);
        None
    }

    /// Whether the one at a position has no connection and was kept for too short a time.
    fn has_lapsed(&self, position: Position, tx: &mut Transaction<'_, '_, '_>) -> bool {
        let waiter = self.queues.at(position);
        let waiter = waiter.filter(|waiter| !waiter.stand.is_blocked());
        waiter.is_some_and(|waiter| waiter.is_over(tx.steady_ms()))
    }

    /// Whether one more may wait in this way, or `older` go on in it.
    fn check_room(
        &self,
        older: Option<Position>,
        names: &Names,
        request: &Request,
        way: Way<'_>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<(), Refusal> {
        let position = older;
        let older = older.and_then(|older| self.queues.at(older));
        let was_blocked = older.is_some_and(|older| older.stand.is_blocked());
        let (passes, others, most, refusal) = match way {
            Way::Block { .. } => (
                was_blocked,
                self.queues.blocked_len(),
                (tx.environment.limits)().max_waiters,
                Refusal::MaxWaiters,
            ),
            Way::Place { .. } => (
                older.is_some_and(|older| request.takes_as_much_as(&older.request)),
                self.queues.place_count() - usize::from(older.is_some() && !was_blocked),
                (tx.environment.limits)().max_tickets,
                Refusal::MaxTickets,
            ),
        };
        if passes || most == 0 || others < most {
            return Ok(());
        }
        // It takes up an absent position and is granted from there: it waits for no time at all.
        let is_kept = older.is_some_and(|older| request.takes_as_much_as(&older.request));
        let passes = position
            .filter(|_| is_kept)
            .is_some_and(|position| self.is_admissible_at(position, names, request, tx));
        passes.then_some(()).ok_or(refusal)
    }

    fn enqueue(
        &mut self,
        waiter: Waiter,
        rank: Rank,
        by: Option<usize>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Position {
        let end = match rank {
            Rank::First => End::Front,
            Rank::At(_) | Rank::Last => End::Back,
        };
        let (position, new_queues) = self.queues.enqueue(waiter, end, by);
        for name in new_queues {
            self.begin_queue(&name, tx);
        }
        position
    }

    /// Somebody waits for a name for which nobody waited before.
    #[inline(never)]
    fn begin_queue(&mut self, name: &Name, tx: &mut Transaction<'_, '_, '_>) {
        let id = tx.entry(name);
        self.reschedule(id, tx);
    }

    /// A token waits once for the same names: its newer wait goes on in the place of the older one, or,
    /// where it wants something else, as a newcomer. Where it stands by then.
    #[inline(never)]
    fn take_over(
        &mut self,
        older: Position,
        newer: Waiter,
        rank: Rank,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Position {
        let waited = self.queues.at(older);
        let since_ms = waited.map_or(newer.since_ms, |older| older.since_ms);
        let newer = Waiter { since_ms, ..newer };
        let position = if rank == Rank::At(older) {
            let timeout_ms = waited.and_then(|older| taken_up_timeout_ms(older, &newer));
            let newer = Waiter {
                timeout_ms,
                ..newer
            };
            let is_blocked = newer.stand.is_blocked();
            if let Some(name) = self.queues.lacks_at(older).cloned() {
                // It may be the one for which those behind it are not looked at.
                tx.settle_again(&name);
            }
            if let Some(waiter) = self.queues.take_over(older, newer) {
                let was_blocked = waiter.stand.is_blocked();
                self.counters.take_overs += u64::from(is_blocked || was_blocked);
                tell(&waiter, TAKEN_OVER, tx);
                if waiter.stand.is_absent() {
                    // While every position is absent, changes of a lock aren't recorded.
                    waiter
                        .names
                        .iter()
                        .for_each(|name| self.begin_queue(name, tx));
                }
            }
            older
        } else {
            self.end_older_wait(older, tx);
            self.enqueue(newer, rank, None, tx)
        };
        // Without the older one before it, it may be admitted.
        tx.lists.again.push(position);
        position
    }

    /// Ends a wait for the sake of a newer one of its token; who stood behind it may be admitted.
    fn end_older_wait(&mut self, older: Position, tx: &mut Transaction<'_, '_, '_>) {
        self.counters.take_overs += 1;
        let vacated = self.end_wait(older, TAKEN_OVER, tx);
        self.settle_vacated(&vacated, tx);
    }

    /// Has names settled whose queues somebody has left, but for those where nobody waits any more and nothing
    /// was due at any time: their locks need no look.
    fn settle_vacated(&self, names: &[Name], tx: &mut Transaction<'_, '_, '_>) {
        for name in names {
            if self.queues.has_queue(name) || self.schedule.time_of(name).is_some() {
                tx.settle_again(name);
            }
        }
    }

    /// Gives up all waits of a token that need one of these names.
    #[inline(never)]
    pub(super) fn cancel(
        &mut self,
        names: &Names,
        token: &Token,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        let mut cancelled = 0_u64;
        let (told, published) = (
            tx.lists.deliveries.completions.len(),
            tx.lists.deliveries.publications.len(),
        );
        for name in names {
            tx.lock_at(name).ok_or(Refusal::WrongType)?;
            let waits = self.queues.waits_at(token, name);
            tx.lists.deliveries.completions.reserve(waits.len());
            // The last first: to leave a queue at its end moves none of the others, who may be thousands.
            for position in waits.into_iter().rev() {
                let lapsed = self.has_lapsed(position, tx);
                let outcome = if lapsed { Outcome::TimedOut } else { CANCELLED };
                let vacated = self.end_wait(position, outcome, tx);
                self.settle_vacated(&vacated, tx);
                cancelled += u64::from(!lapsed);
            }
        }
        if let Some(told) = tx.lists.deliveries.completions.get_mut(told..) {
            told.reverse();
        }
        if let Some(published) = tx.lists.deliveries.publications.get_mut(published..) {
            published.reverse();
        }
        self.counters.cancels += cancelled;
        Ok(Answer::Count(usize::from(cancelled > 0)))
    }

    /// Two holders that both wait to be alone wait for each other. A request for several names
    /// with an upgrade among them could close such a circle through another name.
    fn would_deadlock(
        &self,
        names: &Names,
        request: &Request,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> bool {
        names.count() > 1
            || names.iter().any(|name| {
                let lock = tx.lock_at(name);
                lock.is_some_and(|lock| self.awaits_upgrade(name, lock, &request.token))
            })
    }

    /// Whether another holder than `token` waits to be alone here. Looks through the holders or the
    /// queue, whichever is shorter.
    fn awaits_upgrade(&self, name: &Name, lock: &Lock, token: &Token) -> bool {
        let alone = |waiter: &Waiter| {
            waiter.request.mode == Mode::Exclusive
                && waiter.request.token != *token
                && waiter.names.contains(name)
        };
        if self.queues.position_count(name) < lock.holders().len() {
            let mut queue = self.queues.queue(name);
            return queue
                .any(|(_, waiter)| alone(waiter) && lock.holder(&waiter.request.token).is_some());
        }
        let mut holders = lock.holders().iter();
        holders.any(|own| {
            let waits = self.queues.waits_at(&own.token, name).into_iter();
            let mut waiters = waits.filter_map(|position| self.queues.at(position));
            waiters.any(alone)
        })
    }
}
