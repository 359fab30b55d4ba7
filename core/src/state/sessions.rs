//! Sessions: grants that last as long as a connection does.
//!
//! A tied grant is renewed when a third of its lease has passed, and ends when its connection does, or
//! so long after that as it was told to be kept: then it is an ordinary lease.
//! The session's number is kept in the holder, so it goes wherever the server moves the value; what the
//! number means is known here, in this server's memory, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashSet};

use crate::branch::unlikely;
use crate::values::holder::Holder;
use crate::values::holders::Difference;
use crate::values::lock::Lock;
use crate::values::moment::Moment;
use crate::values::name::Name;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// Bounds of when a session that was deferred is looked at again, in ms.
const SOONEST_MS: u64 = 20;
const LATEST_MS: u64 = 1_000;

/// When a session is due whose grant was not stored yet.
const NEVER_FOLLOWED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The connection lives, as far as is known.
    Alive,
    /// The connection is gone since then, on the wall clock in ms: the grant is to end, or to be kept for
    /// a while.
    Orphan(u64),
}

#[derive(Clone, Debug)]
struct Session {
    client_id: u64,
    name: Name,
    lease_ms: u64,
    keep_ms: Option<u64>,
    state: State,
    /// When to look at it, on the steady clock: to renew it, to end it, or to find that its grant
    /// is gone.
    due_ms: u64,
}

/// All sessions of this server.
///
/// Invariants: `due` lists each session once, as `sessions` has it; `by_client` lists those that are alive,
/// and no client without one. A client in `gone` is in `by_client`, with the moment that it went: what is
/// still listed there has ended with its connection, but was not marked yet, because that takes time
/// for each.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: HashMap<SessionId, Session>,
    by_client: HashMap<u64, BTreeSet<SessionId>>,
    gone: BTreeMap<u64, u64>,
    due: BTreeSet<(u64, SessionId)>,
    orphans: usize,
    last_id: u64,
}

impl Sessions {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Ends all sessions; the grants are left to their leases. The numbers are still in the values and
    /// are not given again.
    pub fn clear(&mut self) {
        let last_id = self.last_id;
        *self = Self {
            last_id,
            ..Self::default()
        };
    }

    /// Whether there is such a session.
    pub fn contains(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// Whether this session binds a grant to a connection that lives.
    pub fn is_alive(&self, id: SessionId) -> bool {
        self.sessions
            .get(&id)
            .is_some_and(|session| self.ended_ms(session).is_none())
    }

    /// Since when the connection of a session is gone, if it is.
    fn ended_ms(&self, session: &Session) -> Option<u64> {
        match session.state {
            State::Orphan(ended_ms) => Some(ended_ms),
            State::Alive => self.gone.get(&session.client_id).copied(),
        }
    }

    /// Whether anything is tied to this connection.
    pub fn has_client(&self, client_id: u64) -> bool {
        self.by_client.contains_key(&client_id)
    }

    /// The connection that a grant is tied to, if it lives.
    pub fn client_of(&self, id: SessionId) -> Option<u64> {
        let session = self.sessions.get(&id)?;
        self.ended_ms(session)
            .is_none()
            .then_some(session.client_id)
    }

    /// How many grants are tied to a connection.
    pub fn count_of(&self, client_id: u64) -> usize {
        self.by_client.get(&client_id).map_or(0, BTreeSet::len)
    }

    /// The sessions of a connection, if it lives, and where their grants are.
    pub fn ties_of(&self, client_id: u64) -> impl Iterator<Item = (SessionId, &Name)> {
        let ids = self.by_client.get(&client_id);
        let ids = ids.filter(|_| !self.gone.contains_key(&client_id));
        ids.into_iter()
            .flatten()
            .filter_map(|id| Some((*id, &self.sessions.get(id)?.name)))
    }

    /// When the next session is due, on the steady clock in ms.
    pub fn next_due_ms(&self) -> Option<u64> {
        if !self.gone.is_empty() {
            return Some(0);
        }
        self.due.first().map(|(ms, _)| *ms)
    }

    /// The sessions that are due at `steady_ms` and where their grants should be, at most `most`.
    pub fn due(&self, steady_ms: u64, most: usize) -> Vec<(SessionId, Name)> {
        let due = self
            .due
            .iter()
            .take_while(|(ms, _)| *ms <= steady_ms)
            .take(most);
        due.filter_map(|(_, id)| Some((*id, self.sessions.get(id)?.name.clone())))
            .collect()
    }

    /// Whether a session is still there and due at `steady_ms`.
    pub fn is_due(&self, id: SessionId, steady_ms: u64) -> bool {
        self.sessions
            .get(&id)
            .is_some_and(|session| session.due_ms <= steady_ms)
    }

    /// Ties a grant at `name` to a connection; it is kept for so long after that is gone.
    pub fn bind(
        &mut self,
        client_id: u64,
        name: Name,
        lease_ms: u64,
        keep_ms: Option<u64>,
    ) -> SessionId {
        // After a RESET it lives on, with new ties beside those that have ended.
        while let Some(ended_ms) = self.gone.get(&client_id).copied() {
            self.mark_first_orphaned(client_id, ended_ms);
        }
        self.last_id += 1;
        let id = SessionId::numbered(self.last_id);
        let session = Session {
            client_id,
            name,
            lease_ms,
            keep_ms,
            state: State::Alive,
            due_ms: NEVER_FOLLOWED,
        };
        self.by_client.entry(client_id).or_default().insert(id);
        self.due.insert((session.due_ms, id));
        self.sessions.insert(id, session);
        id
    }

    /// Ends a session. The grant is left to its lease.
    pub fn end_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.due.remove(&(session.due_ms, id));
        match session.state {
            State::Orphan(_) => self.orphans -= 1,
            State::Alive => self.unlist(session.client_id, id),
        }
    }

    fn unlist(&mut self, client_id: u64, id: SessionId) {
        let Some(ids) = self.by_client.get_mut(&client_id) else {
            return;
        };
        ids.remove(&id);
        if ids.is_empty() {
            self.by_client.remove(&client_id);
            self.gone.remove(&client_id);
        }
    }

    /// The lease of a tied grant was set to another length.
    pub fn set_lease(&mut self, id: SessionId, lease_ms: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.lease_ms = lease_ms;
        }
    }

    /// The grant is at another name now.
    pub fn move_to(&mut self, id: SessionId, name: &Name) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.name = name.clone();
        }
    }

    /// Two databases changed places.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        for session in self.sessions.values_mut() {
            session.name.swap_databases(one, other);
        }
    }

    /// All keys of a database are gone, and with them the grants.
    pub fn end_sessions_in(&mut self, db: i32) {
        let there = |(id, session): (&SessionId, &Session)| (session.name.db == db).then_some(*id);
        let ids: Vec<SessionId> = self.sessions.iter().filter_map(there).collect();
        if ids.len() == self.sessions.len() {
            self.clear();
            return;
        }
        ids.into_iter().for_each(|id| self.end_session(id));
    }

    /// A connection is gone, or was reset, since `ended_ms` on the wall clock: its grants have ended, but for those to be
    /// kept. Costs the same however many they are.
    pub fn close_client(&mut self, client_id: u64, ended_ms: u64) {
        if self.has_client(client_id) {
            self.gone.insert(client_id, ended_ms);
        }
    }

    /// Marks sessions of connections that are gone, at most `most`: they are due from now on.
    pub fn mark_orphaned(&mut self, most: usize) {
        for _ in 0..most {
            let Some((client_id, ended_ms)) = self.gone.first_key_value() else {
                return;
            };
            let (client_id, ended_ms) = (*client_id, *ended_ms);
            self.mark_first_orphaned(client_id, ended_ms);
        }
    }

    /// Marks one session of a connection that is gone; the last one leaves nothing of the connection.
    fn mark_first_orphaned(&mut self, client_id: u64, ended_ms: u64) {
        let first = self.by_client.get(&client_id).and_then(BTreeSet::first);
        let Some(id) = first.copied() else {
            self.gone.remove(&client_id);
            return;
        };
        self.recheck(id, 0);
        self.unlist(client_id, id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.state = State::Orphan(ended_ms);
            self.orphans += 1;
        }
    }

    /// A session that is due but may not be renewed or ended now is looked at again after a sixth of its
    /// lease, twice before a renewal would be late, but within the second.
    pub fn defer(&mut self, id: SessionId, steady_ms: u64) {
        if let Some(session) = self.sessions.get(&id) {
            let later_ms = (session.lease_ms / 6).clamp(SOONEST_MS, LATEST_MS);
            self.recheck(id, steady_ms.saturating_add(later_ms));
        }
    }

    /// Whether a lock has a grant whose connection is gone.
    #[inline(always)]
    pub fn has_orphan_at(&self, lock: &Lock) -> bool {
        unlikely(self.orphans > 0 || !self.gone.is_empty()) && self.is_any_orphaned(lock)
    }

    #[inline(never)]
    fn is_any_orphaned(&self, lock: &Lock) -> bool {
        lock.holders().iter().any(|own| self.is_orphaned(own))
    }

    fn is_orphaned(&self, own: &Holder) -> bool {
        let session = self.sessions.get(&own.session);
        session.is_some_and(|session| self.ended_ms(session).is_some())
    }

    /// Until when a grant is kept whose connection is gone, if its lease was in force then.
    fn kept_until_ms(&self, own: &Holder) -> Option<u64> {
        let session = self.sessions.get(&own.session)?;
        let (ended_ms, keep_ms) = (self.ended_ms(session)?, session.keep_ms?);
        (own.deadline_ms > ended_ms).then(|| ended_ms.saturating_add(keep_ms))
    }

    /// Ends the grants of a lock whose connection is gone, or unties those that are to be kept, and ends
    /// those whose lease has run out, but for those that were due to be renewed before. Tells how many
    /// leases ran out.
    pub fn expire_and_renew(&self, lock: &mut Lock, moment: Moment) -> u64 {
        if self.has_orphan_at(lock) {
            let orphaned = lock.holders().iter().filter(|own| self.is_orphaned(own));
            let orphaned = orphaned.map(|own| (own.token.clone(), self.kept_until_ms(own)));
            let orphaned: Vec<(Token, Option<u64>)> = orphaned.collect();
            for (token, kept_until_ms) in orphaned {
                match kept_until_ms {
                    Some(deadline_ms) => lock.update(&token, |own| {
                        own.deadline_ms = deadline_ms;
                        own.session = SessionId::NONE;
                    }),
                    None => lock.remove(&token),
                };
            }
        }
        lock.expire(moment.ms(), |own| self.renewal(own, moment))
    }

    /// The deadline that a tied grant is given, if its renewal is due.
    pub fn renewal(&self, own: &Holder, moment: Moment) -> Option<u64> {
        let session = self.sessions.get(&own.session)?;
        let due = session.due_ms <= moment.steady_ms && self.ended_ms(session).is_none();
        due.then(|| moment.ms().saturating_add(session.lease_ms))
    }

    /// Records what became of a tied grant.
    ///
    /// A lease that was shortened by hand is not renewed before its time: it may end first.
    pub fn follow(&mut self, difference: &Difference<'_>, moment: Moment) {
        let session_of = |own: Option<&Holder>| own.map_or(SessionId::NONE, |own| own.session);
        let (before, after) = (session_of(difference.before), session_of(difference.after));
        if before != after {
            self.end_session(before);
        }
        let (Some(own), Some(session)) = (difference.after, self.sessions.get(&after)) else {
            return;
        };
        let due_ms = moment.steady_at(renewal_ms(own.deadline_ms, session.lease_ms));
        if due_ms > moment.steady_ms || session.due_ms == NEVER_FOLLOWED {
            self.recheck(after, due_ms);
        }
    }

    /// Drops the sessions of grants that were made and ended in one and the same operation.
    pub fn drop_unfollowed(&mut self) {
        while let Some((NEVER_FOLLOWED, id)) = self.due.last().copied() {
            self.end_session(id);
        }
    }

    fn recheck(&mut self, id: SessionId, due_ms: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            self.due.remove(&(session.due_ms, id));
            session.due_ms = due_ms;
            self.due.insert((due_ms, id));
        }
    }

    /// Checks the invariants of the type, for tests.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let alive = |session: &&Session| session.state == State::Alive;
        let listed: HashSet<&SessionId> = self.by_client.values().flatten().collect();
        let complaints = [
            (
                self.due.len() != self.sessions.len(),
                "sessions that are due",
            ),
            (
                listed.len() != self.sessions.values().filter(alive).count(),
                "sessions by client",
            ),
            (
                self.orphans != self.sessions.len() - listed.len(),
                "orphans",
            ),
            (
                self.by_client.values().any(BTreeSet::is_empty),
                "a client without sessions",
            ),
            (
                !self.gone.keys().all(|id| self.by_client.contains_key(id)),
                "a client that is gone without sessions",
            ),
        ];
        match complaints.iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(format!("{what}: {self:?}")),
            None => Ok(()),
        }
    }
}

/// When a grant with this deadline has used up a third of its lease; at least 1 ms of it.
fn renewal_ms(deadline_ms: u64, lease_ms: u64) -> u64 {
    deadline_ms
        .saturating_sub(lease_ms)
        .saturating_add((lease_ms / 3).max(1))
}
