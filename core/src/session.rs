//! Ties: grants that last as long as a connection does.
//!
//! A tied grant is renewed when a third of its lease has passed, and ends when its connection does.
//! The tie's number lies in the holder, so it goes wherever the server moves the value; what the
//! number means is known here, in this server's memory, and nowhere else.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::holders::Difference;
use crate::lock::{Holder, Lock};
use crate::name::Name;
use crate::token::Token;
use crate::Moment;

/// The number of a tie, or that there is none. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TieId(u64);

impl TieId {
    /// No tie.
    pub const NONE: Self = Self(0);

    /// A tie of a number's own.
    #[cfg(test)]
    pub(crate) const fn for_tests(number: u64) -> Self {
        Self(number)
    }
}

/// Bounds of when a tie that was put off is looked at again, in ms.
const SOONEST_MS: u64 = 20;
const LATEST_MS: u64 = 1_000;

/// When a tie is due whose grant was not stored yet.
const NEVER_FOLLOWED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The connection lives, as far as is known.
    Alive,
    /// The connection is gone: the grant is to end.
    Orphan,
}

#[derive(Clone, Debug)]
struct Tie {
    client_id: u64,
    name: Name,
    lease_ms: u64,
    state: State,
    /// When to look at it, on the steady clock: to renew it, to end it, or to find that its grant
    /// is gone.
    due_ms: u64,
}

/// All ties of this server.
///
/// Invariants: `due` lists each tie once, as `ties` has it; `by_client` lists those that are alive,
/// and no client without one. A client in `gone` is in `by_client`: what is still listed there has
/// ended with its connection, but was not marked yet, because that takes time for each.
#[derive(Debug, Default)]
pub struct Ties {
    ties: HashMap<TieId, Tie>,
    by_client: HashMap<u64, BTreeSet<TieId>>,
    gone: BTreeSet<u64>,
    due: BTreeSet<(u64, TieId)>,
    orphans: usize,
    last_id: u64,
}

impl Ties {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ties.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ties.is_empty()
    }

    /// Takes all ties away. Their numbers live on in the values and are not given again.
    pub fn clear(&mut self) {
        let last_id = self.last_id;
        *self = Self {
            last_id,
            ..Self::default()
        };
    }

    /// Whether there is such a tie.
    pub fn contains(&self, id: TieId) -> bool {
        self.ties.contains_key(&id)
    }

    /// Whether this tie binds a grant to a connection that lives.
    pub fn is_alive(&self, id: TieId) -> bool {
        self.ties.get(&id).is_some_and(|tie| !self.has_ended(tie))
    }

    fn has_ended(&self, tie: &Tie) -> bool {
        tie.state == State::Orphan || self.gone.contains(&tie.client_id)
    }

    /// Whether anything is tied to this connection.
    pub fn has_client(&self, client_id: u64) -> bool {
        self.by_client.contains_key(&client_id)
    }

    /// When the next tie is due, on the steady clock in ms.
    pub fn next_due_ms(&self) -> Option<u64> {
        if !self.gone.is_empty() {
            return Some(0);
        }
        self.due.first().map(|(ms, _)| *ms)
    }

    /// The ties that are due at `steady_ms` and where their grants should be, at most `most`.
    pub fn due(&self, steady_ms: u64, most: usize) -> Vec<(TieId, Name)> {
        let due = self
            .due
            .iter()
            .take_while(|(ms, _)| *ms <= steady_ms)
            .take(most);
        due.filter_map(|(_, id)| Some((*id, self.ties.get(id)?.name.clone())))
            .collect()
    }

    /// Whether a tie is still there and due at `steady_ms`.
    pub fn is_due(&self, id: TieId, steady_ms: u64) -> bool {
        self.ties
            .get(&id)
            .is_some_and(|tie| tie.due_ms <= steady_ms)
    }

    /// Ties a grant at `name` to a connection.
    pub fn tie(&mut self, client_id: u64, name: Name, lease_ms: u64) -> TieId {
        self.last_id += 1;
        let id = TieId(self.last_id);
        let tie = Tie {
            client_id,
            name,
            lease_ms,
            state: State::Alive,
            due_ms: NEVER_FOLLOWED,
        };
        self.by_client.entry(client_id).or_default().insert(id);
        self.due.insert((tie.due_ms, id));
        self.ties.insert(id, tie);
        id
    }

    /// Takes a tie away. The grant is left to its lease.
    pub fn untie(&mut self, id: TieId) {
        let Some(tie) = self.ties.remove(&id) else {
            return;
        };
        self.due.remove(&(tie.due_ms, id));
        match tie.state {
            State::Orphan => self.orphans -= 1,
            State::Alive => self.unlist(tie.client_id, id),
        }
    }

    fn unlist(&mut self, client_id: u64, id: TieId) {
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
    pub fn set_lease(&mut self, id: TieId, lease_ms: u64) {
        if let Some(tie) = self.ties.get_mut(&id) {
            tie.lease_ms = lease_ms;
        }
    }

    /// The grant is at another name now.
    pub fn move_to(&mut self, id: TieId, name: &Name) {
        if let Some(tie) = self.ties.get_mut(&id) {
            tie.name = name.clone();
        }
    }

    /// Two databases changed places.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        for tie in self.ties.values_mut() {
            tie.name.swap_databases(one, other);
        }
    }

    /// All keys of a database are gone, and with them the grants.
    pub fn untie_database(&mut self, db: i32) {
        let there = |(id, tie): (&TieId, &Tie)| (tie.name.db == db).then_some(*id);
        let ids: Vec<TieId> = self.ties.iter().filter_map(there).collect();
        if ids.len() == self.ties.len() {
            self.clear();
            return;
        }
        ids.into_iter().for_each(|id| self.untie(id));
    }

    /// A connection is gone: its grants have ended. Costs the same however many they are.
    pub fn orphan(&mut self, client_id: u64) {
        if self.has_client(client_id) {
            self.gone.insert(client_id);
        }
    }

    /// Marks ties of connections that are gone, at most `most`: they are due from now on.
    pub fn mark_orphans(&mut self, most: usize) {
        for _ in 0..most {
            let Some(client_id) = self.gone.first().copied() else {
                return;
            };
            let first = self.by_client.get(&client_id).and_then(BTreeSet::first);
            let Some(id) = first.copied() else {
                self.gone.remove(&client_id);
                continue;
            };
            self.look_at(id, 0);
            self.unlist(client_id, id);
            if let Some(tie) = self.ties.get_mut(&id) {
                tie.state = State::Orphan;
                self.orphans += 1;
            }
        }
    }

    /// A tie that is due but may not be renewed or ended now is looked at again after a sixth of its
    /// lease, twice before a renewal would be late, but within the second.
    pub fn put_off(&mut self, id: TieId, steady_ms: u64) {
        if let Some(tie) = self.ties.get(&id) {
            let later_ms = (tie.lease_ms / 6).clamp(SOONEST_MS, LATEST_MS);
            self.look_at(id, steady_ms.saturating_add(later_ms));
        }
    }

    /// Whether a lock has a grant whose connection is gone.
    pub fn has_orphan_at(&self, lock: &Lock) -> bool {
        (self.orphans > 0 || !self.gone.is_empty())
            && lock.holders().iter().any(|own| self.is_orphaned(own))
    }

    fn is_orphaned(&self, own: &Holder) -> bool {
        let tie = self.ties.get(&own.tie);
        tie.is_some_and(|tie| self.has_ended(tie))
    }

    /// Ends the grants of a lock whose connection is gone, and those whose lease has run out, but for
    /// those that were due to be renewed before. Tells how many leases ran out.
    pub fn uphold(&self, lock: &mut Lock, moment: Moment) -> u64 {
        if self.has_orphan_at(lock) {
            let orphaned = lock.holders().iter().filter(|own| self.is_orphaned(own));
            let tokens: Vec<Token> = orphaned.map(|own| own.token.clone()).collect();
            for token in tokens {
                lock.remove(&token);
            }
        }
        lock.lapse(moment.ms(), |own| self.renewal(own, moment))
    }

    /// The deadline that a tied grant is given, if it is to be renewed by now.
    pub fn renewal(&self, own: &Holder, moment: Moment) -> Option<u64> {
        let tie = self.ties.get(&own.tie)?;
        let due = tie.due_ms <= moment.steady_ms && !self.has_ended(tie);
        due.then(|| moment.ms().saturating_add(tie.lease_ms))
    }

    /// Takes note of what became of a tied grant.
    ///
    /// A lease that was shortened by hand is not renewed before its time: it may end first.
    pub fn follow(&mut self, difference: &Difference<'_>, moment: Moment) {
        let tie_of = |own: Option<&Holder>| own.map_or(TieId::NONE, |own| own.tie);
        let (before, after) = (tie_of(difference.before), tie_of(difference.after));
        if before != after {
            self.untie(before);
        }
        let (Some(own), Some(tie)) = (difference.after, self.ties.get(&after)) else {
            return;
        };
        let due_ms = moment.steady_at(renewal_ms(own.deadline_ms, tie.lease_ms));
        if due_ms > moment.steady_ms || tie.due_ms == NEVER_FOLLOWED {
            self.look_at(after, due_ms);
        }
    }

    /// Drops the ties of grants that were made and ended in one and the same order.
    pub fn drop_unfollowed(&mut self) {
        while let Some((NEVER_FOLLOWED, id)) = self.due.last().copied() {
            self.untie(id);
        }
    }

    fn look_at(&mut self, id: TieId, due_ms: u64) {
        if let Some(tie) = self.ties.get_mut(&id) {
            self.due.remove(&(tie.due_ms, id));
            tie.due_ms = due_ms;
            self.due.insert((due_ms, id));
        }
    }

    /// Checks the invariants of the type, for tests.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let alive = |tie: &&Tie| tie.state == State::Alive;
        let listed: HashSet<&TieId> = self.by_client.values().flatten().collect();
        let complaints = [
            (self.due.len() != self.ties.len(), "ties that are due"),
            (
                listed.len() != self.ties.values().filter(alive).count(),
                "ties by client",
            ),
            (self.orphans != self.ties.len() - listed.len(), "orphans"),
            (
                self.by_client.values().any(BTreeSet::is_empty),
                "a client without ties",
            ),
            (
                !self.gone.iter().all(|id| self.by_client.contains_key(id)),
                "a client that is gone without ties",
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
