//! Ties: grants that last as long as a connection does.
//!
//! A tied grant is renewed when a third of its lease has passed, and ends when its connection does.
//! The tie's number lies in the holder, so it goes wherever the server moves the value; what the
//! number means is known here, in this server's memory, and nowhere else.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::lock::Lock;
use crate::name::Name;

/// The number of a tie, or that there is none. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TieId(u64);

impl TieId {
    /// No tie.
    pub const NONE: Self = Self(0);
}

/// Bounds of when a tie that was put off is looked at again, in ms.
const SOONEST_MS: u64 = 20;
const LATEST_MS: u64 = 1_000;

/// When a tie is due whose grant was not stored yet.
const NEVER_FOLLOWED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The connection lives.
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
    /// When to look at it: to renew it, to end it, or to find that its grant is gone.
    due_ms: u64,
}

/// All ties of this server.
///
/// Invariant: `by_client` and `due` list each tie once, as `ties` has it. A tie whose grant was
/// taken away behind the desk's back (DEL, a flush, a reload) stays until it is due.
#[derive(Debug, Default)]
pub struct Ties {
    ties: HashMap<TieId, Tie>,
    by_client: HashMap<u64, BTreeSet<TieId>>,
    due: BTreeSet<(u64, TieId)>,
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
        self.ties.clear();
        self.by_client.clear();
        self.due.clear();
    }

    /// Whether this tie binds a grant to a connection that lives.
    pub fn is_alive(&self, id: TieId) -> bool {
        self.ties
            .get(&id)
            .is_some_and(|tie| tie.state == State::Alive)
    }

    /// Whether anything is tied to this connection.
    pub fn has_client(&self, client_id: u64) -> bool {
        self.by_client.contains_key(&client_id)
    }

    /// When the next tie is due, in ms since the epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.due.first().map(|(ms, _)| *ms)
    }

    /// The ties that are due at `now_ms` and where their grants should be, at most `most`.
    pub fn due(&self, now_ms: u64, most: usize) -> Vec<(TieId, Name)> {
        let due = self
            .due
            .iter()
            .take_while(|(ms, _)| *ms <= now_ms)
            .take(most);
        due.filter_map(|(_, id)| Some((*id, self.ties.get(id)?.name.clone())))
            .collect()
    }

    /// Whether a tie is still there and due at `now_ms`.
    pub fn is_due(&self, id: TieId, now_ms: u64) -> bool {
        self.ties.get(&id).is_some_and(|tie| tie.due_ms <= now_ms)
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
        if let Some(ids) = self.by_client.get_mut(&tie.client_id) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_client.remove(&tie.client_id);
            }
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

    /// A connection is gone: its grants are to end, at the names that are returned.
    pub fn orphan(&mut self, client_id: u64) -> Vec<Name> {
        let ids = self.by_client.get(&client_id).cloned().unwrap_or_default();
        for id in &ids {
            self.look_at(*id, 0);
        }
        let orphans = ids.iter().filter_map(|id| {
            let tie = self.ties.get_mut(id)?;
            tie.state = State::Orphan;
            Some(tie.name.clone())
        });
        orphans.collect()
    }

    /// A tie that is due but may not be renewed or ended now is looked at again after a sixth of its
    /// lease, twice before a renewal would be late, but within the second.
    pub fn put_off(&mut self, id: TieId, now_ms: u64) {
        if let Some(tie) = self.ties.get(&id) {
            let later_ms = (tie.lease_ms / 6).clamp(SOONEST_MS, LATEST_MS);
            self.look_at(id, now_ms.saturating_add(later_ms));
        }
    }

    /// Renews the tied grants of a lock that are due, and ends those whose connection is gone.
    pub fn uphold(&self, lock: &mut Lock, now_ms: u64) {
        if self.is_empty() {
            return;
        }
        lock.retain(|holder| match self.ties.get(&holder.tie) {
            Some(Tie {
                state: State::Orphan,
                ..
            }) => false,
            Some(tie) if tie.due_ms <= now_ms => {
                holder.deadline_ms = now_ms.saturating_add(tie.lease_ms);
                true
            }
            _ => true,
        });
    }

    /// Takes note of what became of the ties of a lock.
    ///
    /// A lease that was shortened by hand is not renewed before its time: it may end first.
    pub fn follow(&mut self, before: Option<&Lock>, after: &Lock, now_ms: u64) {
        let tied = |lock: &Lock| -> HashSet<TieId> {
            let ties = lock.holders().iter().map(|holder| holder.tie);
            ties.filter(|tie| *tie != TieId::NONE).collect()
        };
        let kept = tied(after);
        for gone in before.map(tied).unwrap_or_default().difference(&kept) {
            self.untie(*gone);
        }
        for holder in after.holders().iter().filter(|h| h.tie != TieId::NONE) {
            let Some(tie) = self.ties.get(&holder.tie) else {
                continue;
            };
            let due_ms = renewal_ms(holder.deadline_ms, tie.lease_ms);
            if due_ms > now_ms || tie.due_ms == NEVER_FOLLOWED {
                self.look_at(holder.tie, due_ms);
            }
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
}

/// When a grant with this deadline has used up a third of its lease; at least 1 ms of it.
fn renewal_ms(deadline_ms: u64, lease_ms: u64) -> u64 {
    deadline_ms
        .saturating_sub(lease_ms)
        .saturating_add((lease_ms / 3).max(1))
}
