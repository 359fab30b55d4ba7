//! What an operation changes in the locks themselves.

use super::lock_table::Waiting;
use crate::branch::{likely, unlikely};
use crate::decision::{Answer, Caller};
use crate::operation::Leave;
use crate::state::durations::Durations;
use crate::state::hand_over::{HandOver, Replaced};
use crate::state::place::Stand;
use crate::state::queue::{Position, Waiter};
use crate::transaction::{EntryId, Transaction};
use crate::values::grant::Grant;
use crate::values::holder::Holder;
use crate::values::lock::Lock;
use crate::values::moment::has_passed;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::{Life, Repeat, Request};
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// To whom a grant is made.
#[derive(Clone, Copy)]
pub(super) enum Grantee {
    /// To a connection, by its client id.
    Client(u64),
    /// To a place, for so long until its token claims it.
    Place { lease_ms: u64 },
}

impl Waiting {
    /// Makes the grant that [`Waiting::newcomer_admission`] found clear, or [`Waiting::waiter_admission`];
    /// its fence.
    #[inline(always)]
    pub(super) fn grant(
        &mut self,
        names: &Names,
        request: &Request,
        kept_fence: Option<u64>,
        to: Grantee,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> u64 {
        let fence = self.grant_all(names, request, kept_fence, to, tx);
        if unlikely(!self.queues.is_empty()) {
            self.note_waits_elsewhere(names, &request.token, tx);
        }
        fence
    }

    /// As [`Waiting::grant`], of a token that is known not to wait for others, or for which that is noted.
    #[inline(always)]
    pub(super) fn grant_all(
        &mut self,
        names: &Names,
        request: &Request,
        kept_fence: Option<u64>,
        to: Grantee,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> u64 {
        let fence =
            kept_fence.unwrap_or_else(|| tx.environment.fences.next(tx.environment.wall_us));
        for name in names {
            let id = tx.entry(name);
            grant_at(id, request, fence, to, tx);
            if unlikely(kept_fence.is_some()) {
                tx.affirm(id, &request.token);
            }
        }
        self.counters.grants += u64::from(kept_fence.is_none());
        fence
    }

    /// A token that is granted these names may wait for others.
    #[inline(never)]
    fn note_waits_elsewhere(&self, names: &Names, token: &Token, tx: &mut Transaction<'_, '_, '_>) {
        if self.queues.waits_of(token) > 0 {
            tx.lists.granted.push((token.clone(), names.clone()));
        }
    }

    #[inline(never)]
    pub(super) fn take_back(
        &mut self,
        undelivered: &HandOver,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Answer {
        let HandOver {
            grant: Grant { token, fence },
            names,
            replaced,
            place,
            ..
        } = undelivered;
        let now_ms = tx.now_ms();
        let mut count = 0;
        for name in names {
            let id = tx.entry(name);
            let lock = tx.lock(id);
            let own = lock.and_then(|lock| lock.holder(token));
            // A later grant to the same token is another one's business.
            if own.is_none_or(|own| own.fence != *fence) {
                continue;
            }
            tx.remove(id, token);
            count += 1;
            let before = replaced.iter().find(|before| before.name == *name);
            let in_force = before.filter(|it| !has_passed(it.holder.deadline_ms, now_ms));
            if let Some(before) = in_force {
                let holder = before.holder.clone();
                tx.grant(id, before.mode, holder);
            }
        }
        self.counters.take_backs += u64::from(count > 0);
        if let Some(place) = place.as_deref().filter(|_| count > 0) {
            self.give_back(place, tx);
        }
        Answer::Count(count)
    }
}

impl Waiting {
    /// Gives a waiter its position back whose connection was lost before it could know of its grant, as if
    /// that had been lost before. Not where its token came back meanwhile.
    fn give_back(
        &mut self,
        (position, waiter): &(Position, Waiter),
        tx: &mut Transaction<'_, '_, '_>,
    ) {
        let Stand::Blocked {
            keep_ms: Some(keep_ms),
        } = waiter.stand
        else {
            return;
        };
        let waits = self.queues.wait_for(&waiter.request.token, &waiter.names);
        let most = (tx.environment.limits)().max_tickets;
        if waits.is_none() && self.has_room_for_absent(most) {
            let absent = waiter.absent_until(tx.steady_ms().saturating_add(keep_ms));
            self.queues.enqueue_again(*position, absent);
        }
    }
}

/// Makes the grant of one name.
#[inline(always)]
fn grant_at(
    id: EntryId,
    request: &Request,
    fence: u64,
    to: Grantee,
    tx: &mut Transaction<'_, '_, '_>,
) {
    let now_ms = tx.now_ms();
    let Some(lock) = tx.lock(id) else {
        return;
    };
    let own = if likely(lock.is_free()) {
        None
    } else {
        lock.holder(&request.token)
    };
    let own_session = own.map_or(SessionId::NONE, |own| own.session);
    let (holds, since_ms) = match own {
        None => (request.repeat.first_holds(), now_ms),
        Some(own) => kept_by(own, request.repeat, fence, now_ms),
    };
    let terms = match to {
        Grantee::Client(client_id) => {
            let deadline_ms = now_ms.saturating_add(request.lease_ms);
            let Request { life, lease_ms, .. } = *request;
            let session = tx.bind(id, own_session, life, lease_ms, client_id);
            (client_id, session, deadline_ms)
        }
        Grantee::Place { lease_ms } => place_terms(own, now_ms.saturating_add(lease_ms)),
    };
    let (client_id, session, deadline_ms) = terms;
    let holder = Holder {
        token: request.token.clone(),
        fence,
        holds,
        limit: request.limit,
        permits: request.permits,
        deadline_ms,
        lease_ms: request.lease_ms,
        since_ms,
        client_id,
        session,
    };
    tx.grant(id, request.mode, holder);
}

/// How many holds a token has after a grant, and since when: it had this one before.
#[inline(never)]
fn kept_by(own: &Holder, repeat: Repeat, fence: u64, now_ms: u64) -> (u64, u64) {
    let is_claim = own.session == SessionId::UNCLAIMED;
    let holds = match repeat {
        Repeat::Sets(holds) => holds,
        Repeat::Renews => own.holds,
        Repeat::Counts if is_claim => own.holds,
        Repeat::Counts => own.holds.saturating_add(1),
    };
    let is_same_grant = own.fence == fence;
    let since_ms = if is_same_grant { own.since_ms } else { now_ms };
    (holds, since_ms)
}

/// What a grant to a place says of its client, its session and its lease: what it says already, where the
/// token holds; it is never over sooner.
#[inline(never)]
fn place_terms(own: Option<&Holder>, deadline_ms: u64) -> (u64, SessionId, u64) {
    own.map_or((0, SessionId::UNCLAIMED, deadline_ms), |own| {
        let session = Some(own.session).filter(|session| session.is_session());
        (
            own.client_id,
            session.unwrap_or(SessionId::UNCLAIMED),
            own.deadline_ms.max(deadline_ms),
        )
    })
}

/// Sets the lease anew, to its own length unless told; a session also moves the session to the caller,
/// whom INFO shows from then on.
#[inline(never)]
pub(super) fn extend(
    names: &Names,
    token: &Token,
    lease_ms: Option<u64>,
    life: Life,
    caller: Caller,
    tx: &mut Transaction<'_, '_, '_>,
) -> Result<Answer, Refusal> {
    if count_held(names, token, tx)? < names.count() {
        return Ok(Answer::Count(0));
    }
    let now_ms = tx.now_ms();
    for name in names {
        let id = tx.entry(name);
        let Some(own) = tx.lock(id).and_then(|lock| lock.holder(token)) else {
            continue;
        };
        let lease_ms = lease_ms.unwrap_or(own.lease_ms);
        let own_session = own.session;
        let session = tx.bind(id, own_session, life, lease_ms, caller.client_id);
        let extended = |own: &mut Holder| {
            own.deadline_ms = now_ms.saturating_add(lease_ms);
            own.lease_ms = lease_ms;
            own.session = session;
            if matches!(life, Life::Session { .. }) {
                own.client_id = caller.client_id;
            }
        };
        tx.update(id, token, extended);
        tx.affirm(id, token);
    }
    Ok(Answer::Count(names.count()))
}

pub(super) fn release(
    names: &Names,
    token: &Token,
    leave: Leave,
    times: &mut Durations,
    tx: &mut Transaction<'_, '_, '_>,
) -> Result<Answer, Refusal> {
    // Nothing is released where one of several is refused; one alone is looked at but once.
    for name in names.iter().skip(1) {
        tx.lock_at(name).ok_or(Refusal::WrongType)?;
    }
    let mut count = 0;
    for name in names {
        count += usize::from(release_at(name, token, leave, times, tx)?);
    }
    Ok(Answer::Count(count))
}

/// Leaves one name. Whether the token held there.
#[inline(always)]
fn release_at(
    name: &Name,
    token: &Token,
    leave: Leave,
    times: &mut Durations,
    tx: &mut Transaction<'_, '_, '_>,
) -> Result<bool, Refusal> {
    let id = tx.entry(name);
    let lock = tx.lock(id).ok_or(Refusal::WrongType)?;
    let Some(own) = lock.holder(token) else {
        return Ok(false);
    };
    let (holds, since_ms) = (own.holds, own.since_ms);
    let left = match leave {
        Leave::One => holds - 1,
        Leave::AllBut(most) => holds.min(most),
    };
    if likely(left == 0) {
        times.record(tx.now_ms().saturating_sub(since_ms));
        tx.remove(id, token);
    } else {
        leave_holds(id, token, left, tx);
    }
    Ok(true)
}

/// Leaves so many of a token's holds; where those are as many as it had, it is told that it has them.
#[inline(never)]
fn leave_holds(id: EntryId, token: &Token, left: u64, tx: &mut Transaction<'_, '_, '_>) {
    let own = tx.lock(id).and_then(|lock| lock.holder(token));
    let is_as_before = own.is_some_and(|own| own.holds == left);
    tx.update(id, token, |own| own.holds = left);
    if is_as_before {
        tx.affirm(id, token);
    }
}

/// The grants in force of this token at these names.
pub(super) fn held_by(
    token: &Token,
    names: &Names,
    tx: &mut Transaction<'_, '_, '_>,
) -> Vec<Replaced> {
    let mut held = Vec::new();
    for name in names {
        let Some(lock) = tx.lock_at(name) else {
            continue;
        };
        if unlikely(!lock.is_free()) {
            held.extend(replaced_at(name, lock, token));
        }
    }
    held
}

#[inline(never)]
fn replaced_at(name: &Name, lock: &Lock, token: &Token) -> Option<Replaced> {
    lock.holder(token).map(|own| Replaced {
        name: name.clone(),
        mode: lock.mode(),
        holder: own.clone(),
    })
}

/// How many of the names this token holds.
///
/// # Errors
/// [`Refusal::WrongType`]
#[inline(always)]
fn count_held(
    names: &Names,
    token: &Token,
    tx: &mut Transaction<'_, '_, '_>,
) -> Result<usize, Refusal> {
    let mut held = 0;
    for name in names {
        let lock = tx.lock_at(name).ok_or(Refusal::WrongType)?;
        held += usize::from(lock.holder(token).is_some());
    }
    Ok(held)
}
