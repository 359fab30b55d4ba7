//! Pending events: changes outside commands, until the next operation or the timer absorbs them.
//!
//! Callbacks about keys, clients and the server must not write. They leave an event here and arm
//! the timer.

use std::mem;

use foldhash::HashSet;
use redis_lock_core::decision::Publication;
use redis_lock_core::hints::unlikely;
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::state::queue::Position;
use redis_lock_core::state::waiter::WaiterId;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::{Name, Names, Relocation};
use redis_lock_core::values::session_id::SessionId;
use redis_lock_core::values::token::Token;

use super::name_set::NameSet;

/// A change of grants or waiters without an operation of the lock table.
pub enum Event {
    /// Values with these sessions left their keys. They are gone or arrive under another key.
    Unlinked(Vec<SessionId>),
    /// A key was renamed or moved. The value with these sessions is now at this name.
    Arrived(Vec<SessionId>, Name),
    /// A lock was renamed or moved from a name for which a client may wait, or two databases changed
    /// places.
    Relocated(Relocation),
    /// A database was emptied.
    Flushed(i32),
    /// This server became a replica. Leases run on untied, even if it is a primary again by now.
    Demoted,
    /// A connection with sessions was closed or reset at this time on the wall clock, in ms.
    Closed(u64, u64),
    /// This lock left its key, at which a client's reply is held back until replicas acknowledge.
    LockLeft(Name, Box<Lock>),
    /// The server itself replied to a blocked client that was queued at this position, or that
    /// waited for replicas only.
    Left(WaiterId, Option<Position>),
    /// The connection of such a client was lost at this time on the steady clock, in ms.
    Lost(WaiterId, Option<Position>, u64),
}

/// All databases, in [`Pending::databases`] and [`Event::Flushed`], as in the server's event.
pub const ALL_DATABASES: i32 = -1;

/// The search for names with waiters in databases that were flushed or swapped.
pub struct Search {
    databases: HashSet<i32>,
    /// The number below which names are still to be searched, see
    /// [`Queues::names_below`](redis_lock_core::state::queue::Queues::names_below).
    pub below: usize,
}

impl Search {
    /// Returns true if a name is in one of the databases.
    pub fn is_for(&self, name: &Name) -> bool {
        is_in(&self.databases, name)
    }
}

/// Events that were not absorbed yet.
#[derive(Default)]
pub struct Pending {
    /// Names that may have waiters and whose key was created, deleted or changed.
    pub touched: NameSet,
    /// Touched names that the timer is settling.
    pub settling: HashSet<Name>,
    /// Names of restored locks that were not settled yet. Their leases count, not the keys' own
    /// expiry.
    pub restored: NameSet,
    /// Touched names where nothing may be written now.
    pub deferred: NameSet,
    /// The time at which deferred names are looked at again, on the steady clock in ms.
    pub deferred_until_ms: u64,
    /// Databases that were flushed or swapped, whose names are to be searched next.
    pub databases: HashSet<i32>,
    /// The current search.
    search: Option<Search>,
    /// The name that a key is leaving by RENAME or MOVE.
    pub leaving: Option<Name>,
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Hand-overs to take back, because their client was gone before it got the reply.
    pub undelivered: Vec<HandOver>,
    /// True if a replica has come online, which may have loaded a key that its primary lacks.
    pub has_new_replica: bool,
    /// True if a promotion has skipped fences, which the replicas don't know.
    pub has_skipped_fences: bool,
    /// Messages that could not be published at once.
    pub publications: Vec<Publication>,
}

impl Pending {
    /// Returns true if the key of this name may have changed since the name was settled last.
    pub fn may_have_touched(&self, name: &Name) -> bool {
        let search = self.search.as_ref();
        self.touched.contains(name)
            || self.deferred.contains(name)
            || is_in(&self.databases, name)
            || search.is_some_and(|search| search.is_for(name))
    }

    /// Returns true if any key may have changed since its name was settled last.
    pub fn has_touched(&self) -> bool {
        self.has_due() || !self.deferred.is_empty()
    }

    /// Returns true if the timer can settle a changed name at once.
    pub fn has_due(&self) -> bool {
        !self.touched.is_empty() || !self.databases.is_empty() || self.search.is_some()
    }

    /// Takes the current search, or starts one. Returns `None` if no database was flushed or
    /// swapped. Databases that are flushed meanwhile are left to the next search, so each search
    /// ends.
    pub fn take_search(&mut self) -> Option<Search> {
        self.search.take().or_else(|| {
            let databases = mem::take(&mut self.databases);
            (!databases.is_empty()).then_some(Search {
                databases,
                below: usize::MAX,
            })
        })
    }

    /// Keeps a search for the next time, unless it has ended.
    pub fn go_on(&mut self, search: Search) {
        self.search = (search.below > 0).then_some(search);
    }

    /// Removes the hand-overs of a token at these names from those to take back. A reply to a
    /// connection has confirmed that the token holds the names.
    pub fn keep_handed_over(&mut self, token: &Token, names: &Names) {
        if !self.undelivered.is_empty() {
            let is_told = |name: &Name| names.contains(name);
            self.undelivered
                .retain(|it| it.grant.token != *token || !it.names.iter().any(is_told));
        }
    }

    /// Forgets that a lock was restored, because its key's expiry was set from its leases or the
    /// lock is gone.
    #[inline(always)]
    pub fn forget_restored(&mut self, name: &Name) {
        if unlikely(!self.restored.is_empty()) {
            self.remove_restored(name);
        }
    }

    #[inline(never)]
    fn remove_restored(&mut self, name: &Name) {
        self.restored.remove(name);
    }

    /// Makes the deferred names touched again, once their time has come.
    pub fn release_deferred(&mut self, steady_ms: u64) {
        if self.deferred_until_ms <= steady_ms {
            self.touched.append(&mut self.deferred);
        }
    }

    /// Defers a name until `until_ms`, or until the time of the names that are deferred already.
    pub fn defer(&mut self, name: &Name, until_ms: u64) {
        if self.deferred.is_empty() {
            self.deferred_until_ms = until_ms;
        }
        self.deferred.insert(name);
    }

    /// Returns the number of names whose work is postponed: the deferred ones, and those of hand-overs to
    /// take back.
    pub fn postponed_len(&self) -> usize {
        let taken_back = self.undelivered.iter().flat_map(|it| it.names.iter());
        let others = taken_back.filter(|name| !self.deferred.contains(name));
        self.deferred.len() + others.collect::<HashSet<_>>().len()
    }

    /// Swaps two databases in all names, and records the event.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        for names in [&mut self.touched, &mut self.restored, &mut self.deferred] {
            names.swap_databases(one, other);
        }
        let swapped = Relocation::Swapped(one, other);
        self.events.push(Event::Relocated(swapped));
    }
}

/// Returns true if a name is in one of the databases.
fn is_in(databases: &HashSet<i32>, name: &Name) -> bool {
    !databases.is_empty() && (databases.contains(&name.db) || databases.contains(&ALL_DATABASES))
}
