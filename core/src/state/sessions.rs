//! Sessions: ties of grants to connections.
//!
//! 1. A tied grant is renewed when a third of its lease has passed.
//! 2. It ends when its connection closes. With KEEP it becomes an ordinary lease of that length
//!    instead.
//! 3. The session's number is in the holder, so it follows the value wherever the server moves it.
//!    Only this server's memory has the number's meaning.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;

use foldhash::HashMap;

use crate::hints::unlikely;
use crate::state::lost_holds::Loss;
use crate::values::holder::Holder;
use crate::values::holders::Difference;
use crate::values::lock::Lock;
use crate::values::name::Name;
use crate::values::session_id::SessionId;
use crate::values::time::{has_passed, Now};
use crate::values::token::Token;

/// Bounds of the time after which a postponed session is looked at again, in ms.
const SOONEST_MS: u64 = 20;
const LATEST_MS: u64 = 1_000;

/// The due time of a session whose grant was not stored yet.
const NEVER_FOLLOWED: u64 = u64::MAX;

/// The number of a tie. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TieId(u64);

/// The number of a set of keys. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KeysId(u64);

#[derive(Clone, Debug)]
struct Session {
    tie: TieId,
    /// The keys that its grant is among. If these have ended, the session has ended too.
    keys: KeysId,
    /// The grant's key. The database is that of `keys`, see [`Sessions::name_of`].
    name: Name,
    lease_ms: u64,
    keep_ms: Option<u64>,
    /// The next time to look at the session, on the steady clock in ms: to renew it, to end it, or
    /// to find that its grant is gone.
    due_ms: u64,
}

/// The grants that are tied to one connection. After a RESET the connection starts another tie.
#[derive(Debug)]
struct Tie {
    client_id: u64,
    /// The end of the connection, on the wall clock in ms. Each grant ends then, or is kept for its
    /// KEEP.
    ended_ms: Option<u64>,
    sessions: BTreeSet<SessionId>,
}

/// A tie that has ended. Its sessions are made due one after another.
#[derive(Debug)]
struct Ending {
    tie: TieId,
    /// The last session that was made due.
    last: SessionId,
}

/// The keys of one database, from one flush to the next.
#[derive(Debug)]
struct Keys {
    /// The database's number, which SWAPDB changes.
    database: i32,
    sessions: BTreeSet<SessionId>,
}

/// All sessions of this server.
///
/// A session ends at once when its connection closes or its database is flushed.
/// [`Sessions::work_off`] removes what is left of it in parts, because each session takes time.
///
/// Invariants:
/// 1. `due`, and one of `ties`, list each session once.
/// 2. One of `keys` lists it, or one of `flushed` if its keys have ended. In the second case no
///    look-up finds it.
/// 3. `by_client` has the ties that haven't ended, `by_database` all keys. No tie is without a
///    session.
/// 4. `flushed_len` counts the sessions whose keys have ended, `ended_ties` the ties that have.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: HashMap<SessionId, Session>,
    ties: HashMap<TieId, Tie>,
    by_client: HashMap<u64, TieId>,
    keys: HashMap<KeysId, Keys>,
    by_database: HashMap<i32, KeysId>,
    due: BTreeSet<(u64, SessionId)>,
    ending: VecDeque<Ending>,
    ended_ties: usize,
    flushed: Vec<BTreeSet<SessionId>>,
    flushed_len: usize,
    /// The last number that was given to a session, a tie or a set of keys.
    last_number: u64,
}

impl Sessions {
    /// Returns the number of sessions, without those that a flush has ended.
    pub fn len(&self) -> usize {
        self.sessions.len() - self.flushed_len
    }

    /// Returns true if there is no session and none is left to be worked off.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Ends all sessions. The grants are left to their leases. The numbers are still in the values
    /// and are not given again.
    pub fn clear(&mut self) {
        let last_number = self.last_number;
        *self = Self {
            last_number,
            ..Self::default()
        };
    }

    /// Returns true if the session is still kept and no flush has ended it.
    pub fn contains(&self, id: SessionId) -> bool {
        self.get(id).is_some()
    }

    /// Returns true if this session ties a grant to an open connection.
    pub fn is_alive(&self, id: SessionId) -> bool {
        self.client_of(id).is_some()
    }

    fn get(&self, id: SessionId) -> Option<&Session> {
        let session = self.sessions.get(&id)?;
        self.keys.contains_key(&session.keys).then_some(session)
    }

    /// Returns when the connection of a session ended, if it has.
    fn ended_ms(&self, session: &Session) -> Option<u64> {
        self.ties.get(&session.tie)?.ended_ms
    }

    fn name_of(&self, session: &Session) -> Option<Name> {
        let mut name = session.name.clone();
        name.db = self.keys.get(&session.keys)?.database;
        Some(name)
    }

    /// Returns a session id that is greater than all those in use. No later session has a smaller one.
    pub const fn next_id(&self) -> SessionId {
        SessionId::numbered(self.last_number.saturating_add(1))
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns true if any grant is tied to this connection.
    pub fn has_client(&self, client_id: u64) -> bool {
        self.by_client.contains_key(&client_id)
    }

    fn tie_of(&self, client_id: u64) -> Option<&Tie> {
        self.ties.get(self.by_client.get(&client_id)?)
    }

    /// Returns the connection that a grant is tied to, if the connection is open.
    pub fn client_of(&self, id: SessionId) -> Option<u64> {
        let tie = self.ties.get(&self.get(id)?.tie)?;
        tie.ended_ms.is_none().then_some(tie.client_id)
    }

    /// Returns the number of grants that are tied to a connection. Includes those that a flush has
    /// ended and that are not worked off yet.
    pub fn count_of(&self, client_id: u64) -> usize {
        self.tie_of(client_id).map_or(0, |tie| tie.sessions.len())
    }

    /// Returns the sessions of an open connection, with the names of their grants.
    pub fn ties_of(&self, client_id: u64) -> impl Iterator<Item = (SessionId, Name)> + '_ {
        let tie = self.tie_of(client_id).into_iter();
        let ids = tie.flat_map(|tie| &tie.sessions);
        ids.filter_map(|id| Some((*id, self.name_of(self.sessions.get(id)?)?)))
    }

    /// Returns when the next session is due, on the steady clock in ms; 0 if anything is left to be
    /// worked off.
    pub fn next_due_ms(&self) -> Option<u64> {
        if !self.ending.is_empty() || !self.flushed.is_empty() {
            return Some(0);
        }
        self.due.first().map(|(ms, _)| *ms)
    }

    /// Returns the sessions that are due at `steady_ms`, with the names where their grants should
    /// be. Looks at `most` sessions at most.
    pub fn due(&self, steady_ms: u64, most: usize) -> Vec<(SessionId, Name)> {
        let due = self
            .due
            .iter()
            .take_while(|(ms, _)| *ms <= steady_ms)
            .take(most);
        due.filter_map(|(_, id)| Some((*id, self.name_of(self.sessions.get(id)?)?)))
            .collect()
    }

    /// Returns true if a session is still kept, no flush has ended it, and it is due at
    /// `steady_ms`.
    pub fn is_due(&self, id: SessionId, steady_ms: u64) -> bool {
        self.get(id)
            .is_some_and(|session| session.due_ms <= steady_ms)
    }

    /// Ties a grant at `name` to a connection. With `keep_ms` the grant is kept for that time after
    /// the connection ends.
    pub fn bind(
        &mut self,
        client_id: u64,
        name: Name,
        lease_ms: u64,
        keep_ms: Option<u64>,
    ) -> SessionId {
        let id = SessionId::numbered(self.next_number());
        let session = Session {
            tie: self.list_in_tie(id, client_id),
            keys: self.list_in_keys(id, name.db),
            name,
            lease_ms,
            keep_ms,
            due_ms: NEVER_FOLLOWED,
        };
        self.due.insert((session.due_ms, id));
        self.sessions.insert(id, session);
        id
    }

    /// Lists a session in the tie of a connection. Starts a tie if there is none.
    fn list_in_tie(&mut self, id: SessionId, client_id: u64) -> TieId {
        let number = self.next_number();
        let tie_id = *self.by_client.entry(client_id).or_insert(TieId(number));
        let tie = self.ties.entry(tie_id).or_insert_with(|| Tie {
            client_id,
            ended_ms: None,
            sessions: BTreeSet::new(),
        });
        tie.sessions.insert(id);
        tie_id
    }

    /// Lists a session in the keys of a database.
    fn list_in_keys(&mut self, id: SessionId, database: i32) -> KeysId {
        let number = self.next_number();
        let keys_id = *self.by_database.entry(database).or_insert(KeysId(number));
        let keys = self.keys.entry(keys_id).or_insert_with(|| Keys {
            database,
            sessions: BTreeSet::new(),
        });
        keys.sessions.insert(id);
        keys_id
    }

    /// Ends a session. The grant is left to its lease.
    pub fn end_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.due.remove(&(session.due_ms, id));
        self.unlist_from_tie(id, session.tie);
        match self.keys.get_mut(&session.keys) {
            Some(keys) => drop(keys.sessions.remove(&id)),
            None => self.flushed_len -= 1,
        }
    }

    fn unlist_from_tie(&mut self, id: SessionId, tie_id: TieId) {
        let Some(tie) = self.ties.get_mut(&tie_id) else {
            return;
        };
        tie.sessions.remove(&id);
        if !tie.sessions.is_empty() {
            return;
        }
        match tie.ended_ms {
            Some(_) => self.ended_ties -= 1,
            None => drop(self.by_client.remove(&tie.client_id)),
        }
        self.ties.remove(&tie_id);
    }

    /// Sets the lease of a tied grant to another length, in ms.
    pub fn set_lease(&mut self, id: SessionId, lease_ms: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.lease_ms = lease_ms;
        }
    }

    /// Records that the grant of a session is at another name now.
    pub fn move_to(&mut self, id: SessionId, name: &Name) {
        let Some(before) = self.get(id).map(|session| session.keys) else {
            return;
        };
        if let Some(keys) = self.keys.get_mut(&before) {
            keys.sessions.remove(&id);
        }
        let keys = self.list_in_keys(id, name.db);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.name = name.clone();
            session.keys = keys;
        }
    }

    /// Swaps two databases.
    // perf: costs the same for any number of sessions.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        let swapped = [
            (self.by_database.remove(&one), other),
            (self.by_database.remove(&other), one),
        ];
        for (keys_id, database) in swapped {
            let Some(keys_id) = keys_id else { continue };
            self.by_database.insert(database, keys_id);
            if let Some(keys) = self.keys.get_mut(&keys_id) {
                keys.database = database;
            }
        }
    }

    /// Ends the sessions of a database, because all its keys and their grants are gone.
    // perf: costs the same for any number of sessions.
    pub fn end_sessions_in(&mut self, database: i32) {
        let keys_id = self.by_database.remove(&database);
        let Some(keys) = keys_id.and_then(|id| self.keys.remove(&id)) else {
            return;
        };
        if !keys.sessions.is_empty() {
            self.flushed_len += keys.sessions.len();
            self.flushed.push(keys.sessions);
        }
    }

    /// Like [`Sessions::end_sessions_in`], for all databases.
    pub fn end_sessions_everywhere(&mut self) {
        let databases: Vec<i32> = self.by_database.keys().copied().collect();
        for database in databases {
            self.end_sessions_in(database);
        }
    }

    /// Ends the tie of a connection that closed or was reset at `ended_ms` on the wall clock. Its
    /// grants have ended, except those with KEEP.
    // perf: costs the same for any number of sessions.
    pub fn close_client(&mut self, client_id: u64, ended_ms: u64) {
        let Some(tie_id) = self.by_client.remove(&client_id) else {
            return;
        };
        if let Some(tie) = self.ties.get_mut(&tie_id) {
            tie.ended_ms = Some(ended_ms);
            self.ended_ties += 1;
            self.ending.push_back(Ending {
                tie: tie_id,
                last: SessionId::NONE,
            });
        }
    }

    /// Works off what has ended. Removes at most `most` sessions of flushed databases, and makes at
    /// most `most` sessions of ended ties due.
    pub fn work_off(&mut self, steady_ms: u64, most: usize) {
        for _ in 0..most {
            if !self.take_out_next() {
                break;
            }
        }
        for _ in 0..most {
            if !self.make_next_due(steady_ms) {
                return;
            }
        }
    }

    /// Makes the next session of an ended tie due. Returns false if no tie is left.
    ///
    /// The session is due no sooner than now. So sessions that are due already come first, because
    /// they may need a renewal.
    fn make_next_due(&mut self, steady_ms: u64) -> bool {
        let Some(Ending { tie, last }) = self.ending.front_mut() else {
            return false;
        };
        let behind = (Bound::Excluded(*last), Bound::Unbounded);
        let tie = self.ties.get(tie);
        let next = tie.and_then(|tie| tie.sessions.range(behind).next());
        match next.copied() {
            Some(id) => {
                *last = id;
                self.recheck(id, steady_ms);
            }
            None => drop(self.ending.pop_front()),
        }
        true
    }

    /// Removes the next session that a flush has ended. Returns false if there is none.
    fn take_out_next(&mut self) -> bool {
        let Some(flushed) = self.flushed.last_mut() else {
            return false;
        };
        match flushed.pop_first() {
            Some(id) => self.end_session(id),
            None => drop(self.flushed.pop()),
        }
        if self.is_empty() && self.flushed.is_empty() {
            // Frees their memory.
            self.clear();
        }
        true
    }

    /// Postpones a session that is due but is not to be renewed or ended now: by half the time
    /// between two renewals, a sixth of its lease, within 20 ms to 1 s.
    pub fn defer(&mut self, id: SessionId, steady_ms: u64) {
        if let Some(session) = self.get(id) {
            let later_ms = (session.lease_ms / 6).clamp(SOONEST_MS, LATEST_MS);
            self.recheck(id, steady_ms.saturating_add(later_ms));
        }
    }

    /// Returns true if a lock has a grant whose connection is gone.
    #[inline(always)]
    pub fn has_orphan_at(&self, lock: &Lock) -> bool {
        unlikely(self.ended_ties > 0) && self.is_any_orphaned(lock)
    }

    #[inline(never)]
    fn is_any_orphaned(&self, lock: &Lock) -> bool {
        lock.holders().iter().any(|own| self.is_orphaned(own))
    }

    fn is_orphaned(&self, own: &Holder) -> bool {
        let session = self.get(own.session);
        session.is_some_and(|session| self.ended_ms(session).is_some())
    }

    /// Returns the time until which a grant is kept whose connection is gone. `None`: it has no
    /// KEEP, or its lease was over when the connection ended.
    fn kept_until_ms(&self, own: &Holder) -> Option<u64> {
        let session = self.get(own.session)?;
        let (ended_ms, keep_ms) = (self.ended_ms(session)?, session.keep_ms?);
        (!has_passed(own.deadline_ms, ended_ms)).then(|| ended_ms.saturating_add(keep_ms))
    }

    /// Returns the cause by which a grant was lost that [`Sessions::expire_and_renew`] removed.
    pub fn loss_of(&self, own: &Holder) -> Loss {
        if self.is_orphaned(own) && self.kept_until_ms(own).is_none() {
            Loss::Disconnected
        } else {
            Loss::Expired
        }
    }

    /// Ends the grants of a lock whose connections are gone, or unties them if they have KEEP. Then
    /// ends the leases that have run out, except those due for a renewal, which are renewed.
    ///
    /// Returns the number of leases that ran out.
    pub fn expire_and_renew(&self, lock: &mut Lock, now: Now) -> u64 {
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
        lock.expire(now.ms(), |own| self.renewal(own, now))
    }

    /// Returns the new deadline of a tied grant, if its renewal is due.
    pub fn renewal(&self, own: &Holder, now: Now) -> Option<u64> {
        let session = self.get(own.session)?;
        let due = session.due_ms <= now.steady_ms && self.ended_ms(session).is_none();
        due.then(|| now.ms().saturating_add(session.lease_ms))
    }

    /// Records a change of a tied grant.
    ///
    /// A lease that was shortened by hand is not renewed earlier, so it may end first.
    pub fn follow(&mut self, difference: &Difference<'_>, now: Now) {
        let session_of = |own: Option<&Holder>| own.map_or(SessionId::NONE, |own| own.session);
        let (before, after) = (session_of(difference.before), session_of(difference.after));
        if before != after {
            self.end_session(before);
        }
        let (Some(own), Some(session)) = (difference.after, self.get(after)) else {
            return;
        };
        let due_ms = now.steady_at(renewal_ms(own.deadline_ms, session.lease_ms));
        if due_ms > now.steady_ms || session.due_ms == NEVER_FOLLOWED {
            self.recheck(after, due_ms);
        }
    }

    /// Drops the sessions of grants that were made and ended in the same operation.
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
        let is_due =
            |(id, session): (&SessionId, &Session)| self.due.contains(&(session.due_ms, *id));
        let is_tied = |(id, session): (&SessionId, &Session)| {
            let tie = self.ties.get(&session.tie);
            tie.is_some_and(|tie| tie.sessions.contains(id))
        };
        let in_keys = |(id, session): (&SessionId, &Session)| {
            let keys = self.keys.get(&session.keys);
            keys.map_or_else(
                || self.flushed.iter().any(|flushed| flushed.contains(id)),
                |keys| keys.sessions.contains(id),
            )
        };
        let tied: usize = self.ties.values().map(|tie| tie.sessions.len()).sum();
        let keyed: usize = self.keys.values().map(|keys| keys.sessions.len()).sum();
        let ended = self.ties.values().filter(|tie| tie.ended_ms.is_some());
        let is_by_client = |(id, tie): (&TieId, &Tie)| {
            tie.ended_ms.is_some() || self.by_client.get(&tie.client_id) == Some(id)
        };
        let is_by_database =
            |(id, keys): (&KeysId, &Keys)| self.by_database.get(&keys.database) == Some(id);
        let complaints = [
            (
                self.due.len() != self.sessions.len() || !self.sessions.iter().all(is_due),
                "sessions that are due",
            ),
            (
                tied != self.sessions.len() || !self.sessions.iter().all(is_tied),
                "sessions by tie",
            ),
            (
                keyed + self.flushed_len != self.sessions.len()
                    || !self.sessions.iter().all(in_keys),
                "sessions by keys",
            ),
            (self.ended_ties != ended.count(), "ties that have ended"),
            (
                self.by_client.len() + self.ended_ties != self.ties.len()
                    || !self.ties.iter().all(is_by_client),
                "ties by client",
            ),
            (
                self.by_database.len() != self.keys.len() || !self.keys.iter().all(is_by_database),
                "keys by database",
            ),
            (
                self.ties.values().any(|tie| tie.sessions.is_empty()),
                "a tie without sessions",
            ),
        ];
        match complaints.iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(format!("{what}: {self:?}")),
            None => Ok(()),
        }
    }
}

/// Returns the time at which a third of the lease, at least 1 ms, has passed of a grant with this
/// deadline.
fn renewal_ms(deadline_ms: u64, lease_ms: u64) -> u64 {
    deadline_ms
        .saturating_sub(lease_ms)
        .saturating_add((lease_ms / 3).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(db: i32, key: &str) -> Name {
        Name::new(db, key.as_bytes())
    }

    /// Returns two sessions of client 1, of two databases, and one of client 2.
    fn three() -> (Sessions, [SessionId; 3]) {
        let mut sessions = Sessions::default();
        let ids = [
            sessions.bind(1, name(0, "a"), 600, None),
            sessions.bind(1, name(1, "b"), 600, Some(50)),
            sessions.bind(2, name(0, "c"), 600, None),
        ];
        assert_eq!(sessions.check(), Ok(()));
        (sessions, ids)
    }

    #[test]
    fn a_client_has_its_ties_until_its_connection_closes() {
        let (mut sessions, [a, b, c]) = three();
        for (client_id, count) in [(1, 2), (2, 1), (3, 0)] {
            assert_eq!(sessions.count_of(client_id), count);
            assert_eq!(sessions.has_client(client_id), count > 0);
            assert_eq!(sessions.ties_of(client_id).count(), count);
        }
        sessions.close_client(1, 100);
        assert!(!sessions.has_client(1) && !sessions.is_alive(a) && !sessions.is_alive(b));
        assert!(sessions.is_alive(c) && sessions.contains(a));
        assert_eq!(sessions.next_due_ms(), Some(0));
        assert_eq!(sessions.check(), Ok(()));
    }

    #[test]
    fn nothing_of_a_cleared_table_is_given_again() {
        let (mut sessions, ids) = three();
        let next = sessions.next_id();
        sessions.clear();
        assert!(sessions.is_empty() && sessions.next_due_ms().is_none());
        assert_eq!(sessions.next_id(), next);
        let id = sessions.bind(1, name(0, "a"), 600, None);
        assert!(ids.iter().all(|old| *old < id));
    }

    #[test]
    fn a_flush_ends_the_sessions_of_its_database_and_is_worked_off_in_parts() {
        let (mut sessions, [a, b, c]) = three();
        sessions.end_sessions_in(0);
        assert_eq!((sessions.len(), sessions.is_empty()), (1, false));
        assert!(!sessions.contains(a) && sessions.contains(b) && !sessions.contains(c));
        assert_eq!(sessions.check(), Ok(()));
        sessions.work_off(0, 1);
        assert_eq!(sessions.sessions.len(), 2);
        sessions.work_off(0, 9);
        assert_eq!(sessions.sessions.len(), 1);
        assert!(sessions.flushed.is_empty());
        assert_eq!(sessions.check(), Ok(()));
        sessions.end_sessions_everywhere();
        assert_eq!(sessions.len(), 0);
        sessions.work_off(0, 9);
        assert!(sessions.is_empty());
        assert_eq!(sessions.check(), Ok(()));
    }

    /// A sixth of the lease, at least 20 ms, at most 1 s.
    #[test]
    fn a_session_is_deferred_by_a_sixth_of_its_lease() {
        for (lease_ms, later_ms) in [(6, 20), (600, 100), (90_000, 1_000)] {
            let mut sessions = Sessions::default();
            let id = sessions.bind(1, name(0, "a"), 5, None);
            sessions.set_lease(id, lease_ms);
            sessions.defer(id, 7);
            assert_eq!(sessions.next_due_ms(), Some(7 + later_ms), "{lease_ms}");
            assert!(!sessions.is_due(id, 7 + later_ms - 1));
            assert!(sessions.is_due(id, 7 + later_ms));
        }
    }

    #[test]
    fn the_check_finds_each_broken_list() {
        type Break = fn(&mut Sessions, SessionId);
        let breaks: [(Break, &str); 12] = [
            (
                |it, _| {
                    it.due.pop_first();
                },
                "sessions that are due",
            ),
            (
                |it, id| {
                    it.due.remove(&(NEVER_FOLLOWED, id));
                    it.due.insert((7, id));
                },
                "sessions that are due",
            ),
            (
                |it, id| {
                    it.tie(id).sessions.remove(&id);
                },
                "sessions by tie",
            ),
            (
                |it, id| {
                    it.tie(id).sessions.remove(&id);
                    it.tie(id).sessions.insert(SessionId::numbered(99));
                },
                "sessions by tie",
            ),
            (
                |it, id| {
                    it.keys_of(id).sessions.remove(&id);
                },
                "sessions by keys",
            ),
            (
                |it, id| {
                    it.keys_of(id).sessions.remove(&id);
                    it.keys_of(id).sessions.insert(SessionId::numbered(99));
                },
                "sessions by keys",
            ),
            (|it, _| it.flushed_len += 1, "sessions by keys"),
            (|it, _| it.ended_ties += 1, "ties that have ended"),
            (
                |it, _| {
                    it.by_client.remove(&1);
                },
                "ties by client",
            ),
            (
                |it, _| {
                    let tie = it.by_client.remove(&1).expect("a tie");
                    it.by_client.insert(9, tie);
                },
                "ties by client",
            ),
            (
                |it, _| {
                    it.by_database.remove(&0);
                },
                "keys by database",
            ),
            (
                |it, _| {
                    let keys = it.by_database.remove(&0).expect("keys");
                    it.by_database.insert(9, keys);
                },
                "keys by database",
            ),
        ];
        for (number, (break_list, complaint)) in breaks.into_iter().enumerate() {
            let (mut sessions, [a, ..]) = three();
            break_list(&mut sessions, a);
            let found = sessions.check().expect_err("a broken list");
            assert!(found.starts_with(complaint), "break {number}: {found}");
        }
    }

    impl Sessions {
        fn tie(&mut self, id: SessionId) -> &mut Tie {
            let tie = self.sessions[&id].tie;
            self.ties.get_mut(&tie).expect("a tie")
        }

        fn keys_of(&mut self, id: SessionId) -> &mut Keys {
            let keys = self.sessions[&id].keys;
            self.keys.get_mut(&keys).expect("keys")
        }
    }
}
