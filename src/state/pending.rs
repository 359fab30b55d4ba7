//! Pending events: what the module was told outside a command, until the next operation or the timer
//! absorbs it.
//!
//! Callbacks of the keyspace, of clients and of the server must not write: they leave an event here
//! and arm the timer.

use std::mem;

use foldhash::HashSet;
use redis_lock_core::branch::unlikely;
use redis_lock_core::decision::Publication;
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::state::queue::{Position, WaiterId};
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::session_id::SessionId;
use redis_lock_core::values::token::Token;

use super::name_set::NameSet;

/// What happened to grants and waiters without an operation of the lock table.
pub enum Event {
    /// The values with these sessions left their keys: to be gone, or to arrive elsewhere.
    Unlinked(Vec<SessionId>),
    /// A key was renamed or moved: the value with these sessions is here.
    Arrived(Vec<SessionId>, Name),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// A database was emptied.
    Flushed(i32),
    /// This server became a replica: leases run on untied, whatever it is by now.
    Demoted,
    /// A connection is gone, or was reset, that had sessions, since then on the wall clock in ms.
    Closed(u64, u64),
    /// A waiter was answered by the server, who was queued at this position.
    Left(WaiterId, Position),
    /// A waiter's connection was lost, who was queued at this position, since then on the steady clock in ms.
    Lost(WaiterId, Position, u64),
}

/// Stands for all databases in [`Pending::databases`] and [`Event::Flushed`], as in the server's event.
pub const ALL_DATABASES: i32 = -1;

/// The search for the names that somebody waits for in databases that were flushed or swapped.
pub struct Search {
    databases: HashSet<i32>,
    /// Below which number names are still to be looked at, see
    /// [`Queues::names_below`](redis_lock_core::state::queue::Queues::names_below).
    pub below: usize,
}

impl Search {
    /// Returns true if a name is in one of the databases.
    pub fn is_for(&self, name: &Name) -> bool {
        is_in(&self.databases, name)
    }
}

/// What was not absorbed yet.
#[derive(Default)]
pub struct Pending {
    /// Names that somebody may wait for, where a key came, went or changed.
    pub touched: NameSet,
    /// Those of them that the timer settles just now.
    pub settling: HashSet<Name>,
    /// Names of restored locks, until they were settled: their own expiry says nothing, their
    /// leases do.
    pub restored: NameSet,
    /// Touched names where nothing may be written now.
    pub deferred: NameSet,
    /// When to look at those again, on the steady clock in ms.
    pub deferred_until_ms: u64,
    /// Databases that were flushed or swapped, and whose names are to be searched for next.
    pub databases: HashSet<i32>,
    /// The search that is under way.
    search: Option<Search>,
    /// The name that a key is just leaving by RENAME or MOVE.
    pub leaving: Option<Name>,
    /// What happened, in this order.
    pub events: Vec<Event>,
    /// Hand-overs whose client was gone before it could know of them.
    pub undelivered: Vec<HandOver>,
    /// Whether a replica has come online, which may have loaded a key that its primary hasn't.
    pub has_new_replica: bool,
    /// What could not be published at once.
    pub publications: Vec<Publication>,
}

impl Pending {
    /// Whether a key of this name may have come, gone or changed since it was settled last.
    pub fn may_have_touched(&self, name: &Name) -> bool {
        let search = self.search.as_ref();
        self.touched.contains(name)
            || self.deferred.contains(name)
            || is_in(&self.databases, name)
            || search.is_some_and(|search| search.is_for(name))
    }

    /// Returns true if any key may have.
    pub fn has_touched(&self) -> bool {
        self.has_due() || !self.deferred.is_empty()
    }

    /// Returns true if the timer may settle a name for that at once.
    pub fn has_due(&self) -> bool {
        !self.touched.is_empty() || !self.databases.is_empty() || self.search.is_some()
    }

    /// Takes the search that is under way, or begins one; none where no database was flushed or swapped. What
    /// happens to databases meanwhile is left to the next one, so each comes to its end.
    pub fn take_search(&mut self) -> Option<Search> {
        self.search.take().or_else(|| {
            let databases = mem::take(&mut self.databases);
            (!databases.is_empty()).then_some(Search {
                databases,
                below: usize::MAX,
            })
        })
    }

    /// Has a search go on, unless it has come to its end.
    pub fn go_on(&mut self, search: Search) {
        self.search = (search.below > 0).then_some(search);
    }

    /// A connection was told that its token holds these names: what was handed to the same token there is
    /// not to be taken back any more.
    pub fn keep_handed_over(&mut self, token: &Token, names: &Names) {
        if !self.undelivered.is_empty() {
            self.undelivered.retain(
                |HandOver {
                     grant, names: own, ..
                 }| {
                    grant.token != *token || !own.iter().any(|name| names.contains(name))
                },
            );
        }
    }

    /// A lock that was restored is put back to its leases, or gone.
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

    /// Names that were deferred are to be looked at again, once their time has come.
    pub fn release_deferred(&mut self, steady_ms: u64) {
        if self.deferred_until_ms <= steady_ms {
            self.touched.append(&mut self.deferred);
        }
    }

    /// Defers a name until `until_ms`, or until those are looked at that are deferred already.
    pub fn defer(&mut self, name: &Name, until_ms: u64) {
        if self.deferred.is_empty() {
            self.deferred_until_ms = until_ms;
        }
        self.deferred.insert(name);
    }

    /// Two databases changed places, and with them what their names mean.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        for names in [&mut self.touched, &mut self.restored, &mut self.deferred] {
            names.swap_databases(one, other);
        }
        self.events.push(Event::Swapped(one, other));
    }
}

/// Returns true if a name is in one of these databases.
fn is_in(databases: &HashSet<i32>, name: &Name) -> bool {
    !databases.is_empty() && (databases.contains(&name.db) || databases.contains(&ALL_DATABASES))
}
