//! Grants, extensions, releases and take-backs: the changes of an operation to the locks.

use super::lock_table::WaitQueues;
use crate::decision::{Answer, Caller};
use crate::hints::{likely, unlikely};
use crate::operation::{LeaseRule, ReleaseCount};
use crate::state::hand_over::{GrantReply, HandOver, Replaced};
use crate::state::queue::Position;
use crate::state::waiter::{Waiter, WaiterKind};
use crate::transaction::{EntryId, Transaction};
use crate::values::data::Data;
use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::{LeaseKind, Reentry, Request};
use crate::values::session_id::SessionId;
use crate::values::time::has_passed;
use crate::values::token::Token;

/// The receiver of a grant.
#[derive(Clone, Copy)]
pub(super) enum Grantee {
    /// A connection, by its client id.
    Client(u64),
    /// A place. The grant lasts `lease_ms` unless its token claims the grant.
    Place { lease_ms: u64 },
}

impl WaitQueues {
    /// Makes a grant that [`WaitQueues::newcomer_admission`] or [`WaitQueues::waiter_admission`]
    /// found admissible. Returns its fence.
    #[inline(always)]
    pub(super) fn grant(
        &mut self,
        names: &Names,
        request: &Request,
        kept_fence: Option<u64>,
        to: Grantee,
        tx: &mut Transaction,
    ) -> u64 {
        let fence = self.grant_all(names.as_slice(), request, kept_fence, to, tx);
        if unlikely(!self.queues.is_empty()) {
            self.note_waits_elsewhere(names, &request.token, tx);
        }
        fence
    }

    /// Like [`WaitQueues::grant`], for a token without other waits, or whose other waits are
    /// already queued for a recheck.
    #[inline(always)]
    pub(super) fn grant_all(
        &mut self,
        names: &[Name],
        request: &Request,
        kept_fence: Option<u64>,
        to: Grantee,
        tx: &mut Transaction,
    ) -> u64 {
        let fence =
            kept_fence.unwrap_or_else(|| tx.environment.fences.next(tx.environment.wall_us));
        for name in names {
            let id = tx.entry(name);
            grant_at(id, request, fence, to, tx);
            if unlikely(kept_fence.is_some()) {
                tx.force_propagate(id, &request.token);
            }
        }
        self.counters.grants += u64::from(kept_fence.is_none());
        fence
    }

    /// Queues the other waits of a token for a recheck after the token was granted these names.
    #[inline(never)]
    fn note_waits_elsewhere(&self, names: &Names, token: &Token, tx: &mut Transaction) {
        if self.queues.waits_of(token) > 0 {
            tx.lists.granted.push((token.clone(), names.clone()));
        }
    }

    /// Takes back a hand-over: removes its grants, and restores the grants that it replaced if they
    /// are still in force. Restores the waiter's position if the wait had KEEP.
    #[inline(never)]
    pub(super) fn take_back(&mut self, undelivered: &HandOver, tx: &mut Transaction) -> Answer {
        let HandOver {
            grant: GrantReply { token, fence },
            names,
            replaced,
            kept,
            granted_ms,
            ..
        } = undelivered;
        let now_ms = tx.now_ms();
        let mut count = 0;
        let mut ended = Vec::new();
        for name in names {
            let id = tx.entry(name);
            let lock = tx.lock(id);
            let own = lock.and_then(|lock| lock.holder(token));
            // A later grant to the same token has another fence and stays.
            let Some(own) = own.filter(|own| own.fence == *fence) else {
                continue;
            };
            let held_ms = now_ms.saturating_sub(own.since_ms);
            let (share, holds) = ((own.limit, own.permits), own.holds);
            tx.remove(id, token);
            count += 1;
            let before = replaced.binary_search_by(|it| it.name.cmp(name));
            let before = before.ok().and_then(|at| replaced.get(at));
            if let Some(holder) = before.and_then(|before| in_force(before, holds, tx)) {
                let others = tx.lock(id);
                let mode = before.map_or(Mode::Exclusive, |before| before.mode);
                if let Some((mode, holder)) = others.map(|it| restored(mode, holder, share, it)) {
                    tx.grant(id, mode, holder);
                }
            } else {
                ended.push((name, held_ms));
            }
        }
        self.counters.take_backs += u64::from(count > 0);
        let kept = kept.as_deref().filter(|_| count > 0);
        let waits_on = kept.is_some_and(|kept| self.enqueue_kept(kept, *granted_ms, tx));
        if !waits_on {
            for (name, held_ms) in ended {
                self.count_end(name, held_ms, tx);
            }
        }
        Answer::Count(count)
    }

    /// Restores the position of a waiter whose connection was lost before the reply could reach it.
    /// The result is as if the connection had been lost before the grant.
    ///
    /// Does nothing if the wait had no KEEP, if the token has left one of the names or waits for them
    /// again, or if `lock.max-tickets` is reached. Returns true if the waiter waits again.
    fn enqueue_kept(
        &mut self,
        (position, waiter): &(Position, Waiter),
        granted_ms: u64,
        tx: &mut Transaction,
    ) -> bool {
        let WaiterKind::Blocked {
            keep_ms: Some(keep_ms),
        } = waiter.kind
        else {
            return false;
        };
        let Waiter { names, request, .. } = waiter;
        let now_ms = tx.steady_ms();
        let token = &request.token;
        if self.leave_marks.contains_any(names, token, now_ms) {
            return false;
        }
        let waits = self.queues.wait_for(token, names);
        let most = (tx.environment.limits)().max_tickets;
        if waits.is_some() || !self.has_room_for_absent(names, most) {
            return false;
        }
        let absent = waiter.absent_until(now_ms.saturating_add(keep_ms));
        self.count_lost(tx);
        self.queues.enqueue_again(*position, absent);
        self.contention
            .resume_wait(names, waiter.since_ms, granted_ms);
        // Each queue records its lock, also of a name that the token holds by another grant.
        names.iter().for_each(|name| tx.settle_again(name));
        true
    }

    /// Releases the names that the token holds. Returns the number of these names.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] if a key holds another type; then nothing is released.
    pub(super) fn release(
        &mut self,
        names: &Names,
        token: &Token,
        release_count: ReleaseCount,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        // A refused command releases nothing, so all names are checked first. `release_at` checks
        // the first name itself, so that a single name is looked at once.
        for name in names.iter().skip(1) {
            tx.lock_at(name).ok_or(Refusal::WrongType)?;
        }
        let mut count = 0;
        for name in names {
            count += usize::from(self.release_at(name, token, release_count, tx)?);
        }
        Ok(Answer::Count(count))
    }

    /// Releases one name. Returns true if the token held it.
    #[inline(always)]
    fn release_at(
        &mut self,
        name: &Name,
        token: &Token,
        release_count: ReleaseCount,
        tx: &mut Transaction,
    ) -> Result<bool, Refusal> {
        let id = tx.entry(name);
        let lock = tx.lock(id).ok_or(Refusal::WrongType)?;
        let Some(own) = lock.holder(token) else {
            return Ok(false);
        };
        let (holds, since_ms) = (own.holds, own.since_ms);
        let left = match release_count {
            ReleaseCount::One => holds - 1,
            ReleaseCount::AllBut(most) => holds.min(most),
        };
        if likely(left == 0) {
            let held_ms = tx.now_ms().saturating_sub(since_ms);
            self.times.holds.record(held_ms);
            if unlikely(!self.queues.is_empty()) {
                self.count_end(name, held_ms, tx);
            }
            tx.remove(id, token);
        } else {
            leave_holds(id, token, left, tx);
        }
        Ok(true)
    }
}

/// Makes the grant of one name.
#[inline(always)]
fn grant_at(id: EntryId, request: &Request, fence: u64, to: Grantee, tx: &mut Transaction) {
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
    let given = request.data.as_ref();
    let (holds, since_ms, data) = match own {
        None => (request.reentry.first_holds(), now_ms, given_data(given)),
        Some(own) => kept_by(own, request, fence, now_ms),
    };
    let terms = match to {
        Grantee::Client(client_id) => {
            let deadline_ms = now_ms.saturating_add(request.lease_ms);
            let Request {
                lease_kind,
                lease_ms,
                ..
            } = *request;
            let session = tx.bind(id, own_session, lease_kind, lease_ms, client_id);
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
        data,
    };
    tx.grant(id, request.mode, holder);
}

/// Returns the data that a command brings.
#[inline(always)]
fn given_data(data: Option<&Data>) -> Data {
    data.cloned().unwrap_or_default()
}

/// Returns the holds, the `since` and the data of a token after a grant. `own` is the token's grant
/// before.
#[inline(never)]
fn kept_by(own: &Holder, request: &Request, fence: u64, now_ms: u64) -> (u64, u64, Data) {
    let is_claim = own.session == SessionId::UNCLAIMED;
    let holds = match request.reentry {
        Reentry::Sets(holds) => holds.into(),
        Reentry::Renews => own.holds,
        Reentry::Counts if is_claim => own.holds,
        Reentry::Counts => own.holds.saturating_add(1),
    };
    let is_same_grant = own.fence == fence;
    let since_ms = if is_same_grant { own.since_ms } else { now_ms };
    let data = request.data.as_ref().unwrap_or(&own.data);
    (holds, since_ms, data.clone())
}

/// Returns the client id, the session and the deadline of a grant to a place. A token that holds
/// already keeps its client id, and its session if it has one. Its deadline never moves earlier.
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

/// The changes that an extension makes to a grant.
#[derive(Clone, Copy)]
pub(super) struct Extension<'a> {
    /// The lease from now on, in ms; `None`: each grant's own length.
    pub(super) lease_ms: Option<u64>,
    /// The rule by which the lease is set.
    pub(super) lease_rule: LeaseRule,
    /// The tie to a connection.
    pub(super) lease_kind: LeaseKind,
    /// The data; `None`: as before.
    pub(super) data: Option<&'a Data>,
    /// The least fence; `None`: as before.
    pub(super) fence: Option<u64>,
}

impl Extension<'_> {
    /// Returns the deadline and the length of a grant's lease after the extension.
    fn lease_of(&self, own: &Holder, now_ms: u64) -> (u64, u64) {
        let lease_ms = self.lease_ms.unwrap_or(own.lease_ms);
        let deadline_ms = now_ms.saturating_add(lease_ms);
        match self.lease_rule {
            LeaseRule::Lengthen if deadline_ms <= own.deadline_ms => {
                (own.deadline_ms, own.lease_ms)
            }
            LeaseRule::Lengthen | LeaseRule::Set => (deadline_ms, lease_ms),
        }
    }
}

/// Extends the grants of all names, or of none if the token does not hold all of them.
///
/// SESSION also moves the tie to the caller's connection, which LOCK.INFO shows from then on. A
/// fence never falls, and later grants have greater ones.
///
/// # Errors
/// [`Refusal::WrongType`] if a key holds another type.
#[inline(never)]
pub(super) fn extend(
    names: &Names,
    token: &Token,
    extension: Extension<'_>,
    caller: Caller,
    tx: &mut Transaction,
) -> Result<Answer, Refusal> {
    if count_held(names, token, tx)? < names.count() {
        return Ok(Answer::Count(0));
    }
    let Extension {
        lease_kind,
        data,
        fence,
        ..
    } = extension;
    let now_ms = tx.now_ms();
    for name in names {
        let id = tx.entry(name);
        let Some(own) = tx.lock(id).and_then(|lock| lock.holder(token)) else {
            continue;
        };
        let (deadline_ms, lease_ms) = extension.lease_of(own, now_ms);
        let own_session = own.session;
        let session = tx.bind(id, own_session, lease_kind, lease_ms, caller.client_id);
        let extended = |own: &mut Holder| {
            own.deadline_ms = deadline_ms;
            own.lease_ms = lease_ms;
            own.session = session;
            own.fence = own.fence.max(fence.unwrap_or(0));
            if let Some(data) = data {
                own.data = data.clone();
            }
            if matches!(lease_kind, LeaseKind::Session { .. }) {
                own.client_id = caller.client_id;
            }
        };
        tx.update(id, token, extended);
        tx.force_propagate(id, token);
    }
    if let Some(fence) = fence {
        tx.environment.fences.raise(fence);
    }
    Ok(Answer::Count(names.count()))
}

/// Sets the number of a token's holds. If the number is unchanged, the grant is replicated all the
/// same.
#[inline(never)]
fn leave_holds(id: EntryId, token: &Token, left: u64, tx: &mut Transaction) {
    let own = tx.lock(id).and_then(|lock| lock.holder(token));
    let is_as_before = own.is_some_and(|own| own.holds == left);
    tx.update(id, token, |own| own.holds = left);
    if is_as_before {
        tx.force_propagate(id, token);
    }
}

/// Returns the mode and the holder of a grant that a hand-over replaced, to restore it beside other
/// holders. If these no longer admit it, it is restored as the hand-over left it: shared, with the
/// hand-over's limit and permits.
fn restored(
    mode: Mode,
    holder: Holder,
    (limit, permits): (u32, u32),
    others: &Lock,
) -> (Mode, Holder) {
    if others.admits(mode, &holder) {
        return (mode, holder);
    }
    let left = Holder {
        limit,
        permits,
        ..holder
    };
    (Mode::Shared, left)
}

/// Returns a grant that a hand-over replaced as it would be now, if it is still in force. An open
/// connection would have renewed it, with the lease that it had. Holds that the token has released
/// since, so that `holds` are left, are gone.
fn in_force(before: &Replaced, holds: u64, tx: &mut Transaction) -> Option<Holder> {
    let mut holder = before.holder.clone();
    let released = before.holds_after.saturating_sub(holds);
    holder.holds = holder.holds.saturating_sub(released);
    if tx.sessions.is_alive(holder.session) {
        tx.sessions.set_lease(holder.session, holder.lease_ms);
        let renewed_ms = tx.now_ms().saturating_add(holder.lease_ms);
        holder.deadline_ms = holder.deadline_ms.max(renewed_ms);
    }
    (holder.holds > 0 && !has_passed(holder.deadline_ms, tx.now_ms())).then_some(holder)
}

/// Returns the grants of this token at these names that are in force, in the order of the names.
pub(super) fn held_by(token: &Token, names: &[Name], tx: &mut Transaction) -> Vec<Replaced> {
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
        holds_after: own.holds,
    })
}

/// Notes the holds that a hand-over has left the token, at each name where it replaced a grant.
#[inline(never)]
pub(super) fn note_holds_after(replaced: &mut [Replaced], token: &Token, tx: &mut Transaction) {
    for before in replaced {
        let lock = tx.lock_at(&before.name);
        if let Some(own) = lock.and_then(|lock| lock.holder(token)) {
            before.holds_after = own.holds;
        }
    }
}

/// Returns the number of these names that the token holds.
///
/// # Errors
/// [`Refusal::WrongType`] if a key holds another type.
#[inline(always)]
pub(super) fn count_held(
    names: &Names,
    token: &Token,
    tx: &mut Transaction,
) -> Result<usize, Refusal> {
    let mut held = 0;
    for name in names {
        let lock = tx.lock_at(name).ok_or(Refusal::WrongType)?;
        held += usize::from(lock.holder(token).is_some());
    }
    Ok(held)
}
