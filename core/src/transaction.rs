//! A transaction: the locks that one operation touches, before and after its changes.
//!
//! 1. A name is read from the server once. The read ends the leases that have run out.
//! 2. Changes are made to a copy of the lock. The lock that was read stays as it was.
//! 3. [`Transaction::commit`] compares the two and turns the difference into effects. So a refused
//!    operation has no effect, except that leases are expired.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::{mem, ptr, slice};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use crate::budget::MOST_STEPS;
use crate::decision::{Completion, Deliveries};
use crate::effect::{self, Change, Effect, EffectName, Effects};
use crate::hints::{likely, unlikely};
use crate::state::lost_holds::LostHold;
use crate::state::queue::{Position, QueueId, Queues};
use crate::state::replica_waits::ReplicaWaits;
use crate::state::sessions::Sessions;
use crate::store::{Environment, KeyState};
use crate::values::holder::{Holder, Mode};
use crate::values::holders::Difference;
use crate::values::lock::{Lock, Stored};
use crate::values::name::{Name, Names};
use crate::values::request::LeaseKind;
use crate::values::session_id::SessionId;
use crate::values::time::{has_passed, Now};
use crate::values::token::Token;

/// The reads and the pending writes of one operation. Nothing reaches the keyspace until
/// [`Transaction::commit`] has turned the writes into effects and the server has applied them.
pub struct Transaction<'t, 'e, 'n> {
    /// The environment of the operation.
    pub environment: &'t mut Environment<'e, 'n>,
    /// True if no key may have changed since the table last settled it.
    pub nothing_touched: bool,
    /// The lock table's sessions.
    pub sessions: &'t mut Sessions,
    /// The lock table's replica waits.
    pub replica_waits: &'t mut ReplicaWaits,
    entries: Entries<'t, 'n>,
    /// The steady clock, once it was read.
    steady_ms: Option<u64>,
    /// The names and waiters to look at, and the deliveries.
    pub lists: &'t mut Lists,
    /// True if a changed lock may have several holders.
    pub any_shared: bool,
    /// The number of leases that were found to have run out.
    pub expirations: u64,
    /// The steps that the operation has taken: names looked at, waiters removed or granted.
    pub steps: u64,
    /// The steps after which no further waiter is looked at.
    last_step: u64,
    /// The flag of the workspace.
    in_use: &'t mut bool,
}

/// The buffers of a transaction, which the lock table keeps for the next one.
// perf: most operations use none of them. The others hardly allocate.
#[derive(Default)]
pub struct Workspace {
    others: OtherEntries,
    lists: Lists,
    /// True while a transaction uses the workspace. A transaction leaves it empty, unless it
    /// panics.
    in_use: bool,
}

/// The lists of a transaction.
#[derive(Default)]
pub struct Lists {
    /// Entries whose lock or queue was changed and whose name was not settled since.
    pub changed: Vec<EntryId>,
    /// Waiters to look at, regardless of changes at their names.
    pub again: Vec<Position>,
    /// Replies to waiters, and messages to publish.
    pub deliveries: Box<Deliveries>,
    /// A buffer for the next operation's deliveries, while this operation's are carried out.
    spare: Option<Box<Deliveries>>,
    /// The buffer of the list of waiters to look at.
    pub heap: BinaryHeap<Reverse<Position>>,
    /// Tokens that were granted names and have other waits, with the granted names.
    pub granted: Vec<(Token, Names)>,
    /// Holds that were found to have ended without a release, and were not counted yet.
    pub lost_holds: Vec<(EntryId, LostHold)>,
}

impl Workspace {
    /// Keeps the memory of deliveries that were carried out.
    pub fn reuse(&mut self, mut deliveries: Box<Deliveries>) {
        deliveries.clear();
        self.lists.spare = Some(deliveries);
    }

    /// Removes what a transaction left behind when it panicked.
    #[cold]
    #[inline(never)]
    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Lists {
    fn take_deliveries(&mut self) -> Box<Deliveries> {
        let spare = self.spare.take().unwrap_or_default();
        mem::replace(&mut self.deliveries, spare)
    }

    /// Returns true if no name and no waiter is left to look at.
    fn are_worked_off(&self) -> bool {
        self.changed.is_empty() && self.again.is_empty() && self.granted.is_empty()
    }
}

/// The number of a name that the transaction has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(usize);

impl EntryId {
    /// The entry of the operation's first name.
    const FIRST: Self = Self(0);
}

/// The lock of a name without a key.
static FREE: Lock = Lock::free();

/// The names that the transaction has read.
// perf: most operations read one name, so the entry of the first name is stored inline.
struct Entries<'t, 'n> {
    /// The operation's first name.
    first_name: Option<&'n Name>,
    /// The entry of the first name, once it was read.
    first: Option<Entry>,
    others: &'t mut OtherEntries,
    /// The queue of the first name, once it was found.
    first_queue: Cell<Option<QueueId>>,
}

type OtherEntries = IndexMap<Name, Entry, RandomState>;

impl Entries<'_, '_> {
    // perf: the operation's first name is mostly asked for by itself, so its address is compared
    // before its bytes.
    #[inline(always)]
    fn is_first(&self, name: &Name) -> bool {
        let is_itself = self.first_name.is_some_and(|first| ptr::eq(first, name));
        likely(is_itself) || self.first_name == Some(name)
    }

    #[inline(always)]
    fn find(&self, name: &Name) -> Option<EntryId> {
        if self.is_first(name) {
            return self.first.is_some().then_some(EntryId::FIRST);
        }
        let at = self.others.get_index_of(name)?;
        Some(EntryId(at + 1))
    }

    #[inline(always)]
    fn insert(&mut self, name: &Name, before: KeyState) -> EntryId {
        if self.is_first(name) {
            self.first = Some(Entry::read(before));
            return EntryId::FIRST;
        }
        let (at, _) = self.others.insert_full(name.clone(), Entry::read(before));
        EntryId(at + 1)
    }

    #[inline(always)]
    fn get(&self, EntryId(number): EntryId) -> Option<&Entry> {
        match number.checked_sub(1) {
            None => self.first.as_ref(),
            Some(at) => self.others.get_index(at).map(|(_, entry)| entry),
        }
    }

    #[inline(always)]
    fn get_mut(&mut self, EntryId(number): EntryId) -> Option<&mut Entry> {
        match number.checked_sub(1) {
            None => self.first.as_mut(),
            Some(at) => self.others.get_index_mut(at).map(|(_, entry)| entry),
        }
    }

    fn name(&self, id: EntryId) -> Option<&Name> {
        match id.0.checked_sub(1) {
            None => self.first_name.filter(|_| self.first.is_some()),
            Some(at) => self.others.get_index(at).map(|(name, _)| name),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        let first = self.first_name.zip(self.first.as_ref());
        first.into_iter().chain(self.others.iter())
    }
}

struct Entry {
    before: KeyState,
    /// The lock after the operation's changes; `None` if there were none.
    after: Option<Lock>,
    /// The tokens whose grants are replicated even if they are as before.
    forced: Vec<Token>,
    /// True if the operation renews a session here.
    renewed: bool,
    /// The result of [`crate::store::Store::is_here`], if it was called.
    is_here: Option<bool>,
    /// True if the lock that was read was compared with the one that its queue had recorded.
    is_compared: bool,
}

impl Entry {
    #[inline]
    const fn read(before: KeyState) -> Self {
        Self {
            before,
            after: None,
            forced: Vec::new(),
            renewed: false,
            is_here: None,
            is_compared: false,
        }
    }

    fn stored(&self) -> Option<&Stored> {
        match &self.before {
            KeyState::Lock(stored) => Some(stored),
            KeyState::Empty | KeyState::OtherType => None,
        }
    }

    /// Returns the lock in its current state; `None` if there is no lock.
    fn lock(&self) -> Option<&Lock> {
        let before = self.stored().map(|stored| &stored.lock);
        self.after.as_ref().or(before)
    }

    /// Returns the lock to change. The first call copies the lock that was read.
    // perf: a lock that is replaced as a whole is assigned to `after` and never copied.
    fn own_lock(&mut self) -> &mut Lock {
        let before = match &self.before {
            KeyState::Lock(stored) => &stored.lock,
            KeyState::Empty | KeyState::OtherType => &FREE,
        };
        self.after.get_or_insert_with(|| before.clone())
    }
}

impl<'t, 'e, 'n> Transaction<'t, 'e, 'n> {
    /// Starts a transaction for these names. The transaction may read other names too.
    #[inline(always)]
    pub fn new(
        names: &'n [Name],
        environment: &'t mut Environment<'e, 'n>,
        (sessions, replica_waits): (&'t mut Sessions, &'t mut ReplicaWaits),
        workspace: &'t mut Workspace,
    ) -> Self {
        if unlikely(workspace.in_use) {
            workspace.clear();
        }
        let Workspace {
            others,
            lists,
            in_use,
        } = workspace;
        *in_use = true;
        let nothing_touched = !environment.store.is_any_touched();
        Self {
            environment,
            nothing_touched,
            sessions,
            replica_waits,
            entries: Entries {
                first_name: names.first(),
                first: None,
                others,
                first_queue: Cell::new(None),
            },
            steady_ms: None,
            lists,
            any_shared: false,
            expirations: 0,
            steps: 0,
            last_step: MOST_STEPS,
            in_use,
        }
    }

    /// Returns true if the operation may look at a further waiter.
    #[inline]
    pub const fn has_steps_left(&self) -> bool {
        self.steps < self.last_step
    }

    /// Begins a part of the timer's work, which has steps of its own. So each firing gets on,
    /// whatever the parts before have taken.
    pub const fn begin_part(&mut self) {
        self.last_step = self.steps.saturating_add(MOST_STEPS);
    }

    /// Returns the wall clock in ms, by which leases end.
    pub fn now_ms(&self) -> u64 {
        self.environment.wall_us / 1000
    }

    /// Returns the steady clock in ms, by which waits end. It stays the same for the whole
    /// transaction.
    #[inline]
    pub fn steady_ms(&mut self) -> u64 {
        let store = &mut self.environment.store;
        *self.steady_ms.get_or_insert_with(|| store.steady_ms())
    }

    /// Returns both clocks.
    pub fn now(&mut self) -> Now {
        Now {
            wall_us: self.environment.wall_us,
            steady_ms: self.steady_ms(),
        }
    }

    /// Returns the entry of a name. Reads the name if it was not read yet.
    #[inline(always)]
    pub fn entry(&mut self, name: &Name) -> EntryId {
        match self.entries.find(name) {
            Some(id) => id,
            None => self.read(name),
        }
    }

    #[inline]
    fn read(&mut self, name: &Name) -> EntryId {
        self.steps += 1;
        let before = self.environment.store.read(name);
        let is_up_to_date = match &before {
            KeyState::Lock(stored) => self.is_up_to_date(stored),
            // perf: `before` is as large as a lock, so an empty key does not move it.
            KeyState::Empty => return self.entries.insert(name, KeyState::Empty),
            // The waiters of this name get WRONGTYPE.
            KeyState::OtherType => false,
        };
        let id = self.entries.insert(name, before);
        if unlikely(!is_up_to_date) {
            self.bring_up_to_date(id);
        }
        id
    }

    /// Returns the name of an entry.
    pub fn name_of(&self, id: EntryId) -> Option<&Name> {
        self.entries.name(id)
    }

    /// Returns these names. Returns the operation's own name if they are only that name.
    // perf: the operation's own name is recognized by its address. A hand-over asks for its name
    // seven times.
    #[inline]
    pub fn own<'a>(&self, names: &'a Names) -> &'a [Name]
    where
        'n: 'a,
    {
        match (names.only(), self.entries.first_name) {
            (Some(name), Some(first)) if likely(name == first) => slice::from_ref(first),
            _ => names.as_slice(),
        }
    }

    /// Returns the queue of a name; `None` if the name has no waiters.
    // perf: the queue of the operation's first name is searched once. The commands of a hand-over ask
    // for it nine times, and a search takes 120 instructions more than this.
    #[inline]
    pub fn queue(&self, name: &Name, queues: &Queues) -> Option<QueueId> {
        if likely(self.entries.is_first(name)) {
            let known = &self.entries.first_queue;
            if let Some(id) = known.get().filter(|id| queues.is_current(*id)) {
                return Some(id);
            }
            let found = queues.find(name);
            known.set(found);
            return found;
        }
        queues.find(name)
    }

    /// Returns the queue of these names, if it is only one name and it has waiters.
    #[inline]
    pub fn only_queue(&self, names: &Names, queues: &Queues) -> Option<QueueId> {
        self.queue(names.only()?, queues)
    }

    /// Returns the lock of a name, without leases that have ended; `None` for a key of another
    /// type.
    #[inline(always)]
    pub fn lock_at(&mut self, name: &Name) -> Option<&Lock> {
        let id = self.entry(name);
        self.lock(id)
    }

    /// Returns the lock of an entry, without leases that have ended; `None` for a key of another
    /// type.
    #[inline(always)]
    pub fn lock(&self, id: EntryId) -> Option<&Lock> {
        let entry = self.entries.get(id)?;
        if unlikely(matches!(entry.before, KeyState::OtherType)) {
            return None;
        }
        Some(entry.lock().unwrap_or(&FREE))
    }

    /// Adds a grant to the lock of an entry, see [`Lock::grant`].
    #[inline(always)]
    pub fn grant(&mut self, id: EntryId, mode: Mode, holder: Holder) {
        let Some(entry) = self.entry_to_change(id) else {
            return;
        };
        if likely(entry.lock().unwrap_or(&FREE).is_replaced_by(mode)) {
            entry.after = Some(Lock::sole(mode, holder));
        } else {
            self.grant_beside(id, mode, holder);
        }
    }

    fn grant_beside(&mut self, id: EntryId, mode: Mode, holder: Holder) {
        self.change(id, |lock| lock.grant(mode, holder));
    }

    /// Removes the grant of a token from the lock of an entry. The token must hold the lock.
    #[inline(always)]
    pub fn remove(&mut self, id: EntryId, token: &Token) {
        let Some(entry) = self.entry_to_change(id) else {
            return;
        };
        if likely(entry.lock().is_none_or(|lock| lock.holders().is_one())) {
            entry.after = Some(Lock::free());
        } else {
            self.remove_one_of(id, token);
        }
    }

    fn remove_one_of(&mut self, id: EntryId, token: &Token) {
        self.change(id, |lock| lock.remove(token));
    }

    /// Changes the grant of a token. `change` must keep the token.
    pub fn update(&mut self, id: EntryId, token: &Token, change: impl FnOnce(&mut Holder)) {
        if self.entry_to_change(id).is_some() {
            self.change(id, |lock| lock.update(token, change));
        }
    }

    /// Returns an entry whose lock is about to change, and notes that its name is to be settled.
    /// Returns `None` for a key of another type.
    #[inline(always)]
    fn entry_to_change(&mut self, id: EntryId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id)?;
        if unlikely(matches!(entry.before, KeyState::OtherType)) {
            return None;
        }
        self.lists.changed.push(id);
        Some(entry)
    }

    /// Changes the lock of an entry whose change the caller has noted.
    fn change<T>(&mut self, id: EntryId, change: impl FnOnce(&mut Lock) -> T) {
        if let Some(entry) = self.entries.get_mut(id) {
            let lock = entry.own_lock();
            change(lock);
            self.any_shared |= lock.holders().len() > 1;
        }
    }

    /// Notes that a name is to be settled although its lock may be unchanged, because its queue has
    /// changed.
    pub fn settle_again(&mut self, name: &Name) {
        let id = self.entry(name);
        self.lists.changed.push(id);
    }

    /// Returns true if all grants of a stored lock are still in force as they are stored.
    ///
    /// A key that expires before its leases was given an EXPIRE by hand, which shortens the leases.
    fn is_up_to_date(&self, stored: &Stored) -> bool {
        let Stored { lock, expiry_ms } = stored;
        let expiry_ms = expiry_ms.unwrap_or(u64::MAX);
        let shortened = lock.latest_deadline_ms().is_some_and(|ms| ms > expiry_ms);
        let ended = lock
            .earliest_deadline_ms()
            .is_some_and(|ms| has_passed(ms.min(expiry_ms), self.now_ms()));
        !shortened && !ended && !self.sessions.has_orphan_at(lock)
    }

    /// Brings the lock of an entry up to date: ends, shortens, unties or renews its grants.
    #[cold]
    fn bring_up_to_date(&mut self, id: EntryId) {
        // The lock may have lost some of several holders.
        self.any_shared = true;
        self.lists.changed.push(id);
        let now = self.now();
        let name = self.entries.name(id).cloned();
        let entry = self.entries.get_mut(id);
        let Some((entry, expiry_ms)) = entry.and_then(|entry| {
            let expiry_ms = entry.stored()?.expiry_ms;
            Some((entry, expiry_ms))
        }) else {
            return;
        };
        let lock = entry.own_lock();
        lock.shorten(expiry_ms.unwrap_or(u64::MAX));
        let before = lock.clone();
        self.expirations += self.sessions.expire_and_renew(lock, now);
        for Difference { before, after } in before.holders().differences(lock.holders()) {
            if let (Some(own), None) = (before, after) {
                if let Some(name) = &name {
                    self.replica_waits.lose(name, &own.token);
                }
                let loss = self.sessions.loss_of(own);
                let lost = LostHold::of(own, loss, now.ms());
                self.lists.lost_holds.push((id, lost));
            }
        }
    }

    /// Returns the lock of an entry as it was read, with leases that have ended. A key of another
    /// type has a free one.
    pub fn lock_before(&self, id: EntryId) -> &Lock {
        let stored = self.entries.get(id).and_then(Entry::stored);
        stored.map_or(&FREE, |stored| &stored.lock)
    }

    /// Marks the lock of an entry, as it was read, as compared with the lock that its queue recorded.
    /// Returns true if it was marked before, so the queue may have recorded a newer lock since.
    pub fn mark_compared(&mut self, id: EntryId) -> bool {
        let entry = self.entries.get_mut(id);
        entry.is_none_or(|entry| mem::replace(&mut entry.is_compared, true))
    }

    /// Returns true if a name had no key before this operation.
    pub fn had_no_key(&mut self, name: &Name) -> bool {
        let id = self.entry(name);
        let entry = self.entries.get(id);
        entry.is_some_and(|entry| entry.before == KeyState::Empty)
    }

    /// Returns true if the operation has read a name.
    pub fn has_read(&self, name: &Name) -> bool {
        self.entries.find(name).is_some()
    }

    /// Returns true if a name had no key here and its lock may be on another server now.
    pub fn is_away(&mut self, name: &Name) -> bool {
        if !self.had_no_key(name) {
            return false;
        }
        let id = self.entry(name);
        let known = self.entries.get(id).and_then(|entry| entry.is_here);
        let is_here = known.unwrap_or_else(|| self.environment.store.is_here(name));
        if let Some(entry) = self.entries.get_mut(id) {
            entry.is_here = Some(is_here);
        }
        !is_here
    }

    /// Returns the names that the operation has read so far.
    pub fn names_read(&self) -> impl Iterator<Item = &Name> {
        self.entries.iter().map(|(name, _)| name)
    }

    /// Returns the lock of a name as the operation leaves it, without adding an entry. Returns
    /// `None` for a key of another type, and for a lock with a grant whose end no operation has
    /// seen yet.
    pub fn peek(&mut self, name: &Name) -> Option<Lock> {
        if let Some(id) = self.entries.find(name) {
            return self.lock(id).cloned();
        }
        match self.environment.store.read(name) {
            KeyState::Empty => Some(Lock::free()),
            KeyState::Lock(stored) => self.is_up_to_date(&stored).then_some(stored.lock),
            KeyState::OtherType => None,
        }
    }

    /// Returns true if [`Transaction::is_away`] was called for the name of an entry and returned
    /// true.
    pub fn was_away(&self, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        entry.is_some_and(|entry| entry.is_here == Some(false))
    }

    /// Renews the grant with this session if the renewal is due.
    pub fn renew(&mut self, name: &Name, session: SessionId) {
        let id = self.entry(name);
        let now = self.now();
        let own = self
            .lock(id)
            .and_then(|lock| lock.holders().with_session(session));
        let Some(own) = own.cloned() else { return };
        match self.sessions.renewal(&own, now) {
            Some(deadline_ms) if deadline_ms > own.deadline_ms => {
                self.update(id, &own.token, |own| own.deadline_ms = deadline_ms);
            }
            // The wall clock was set back, and the lease is longer than a renewal makes it.
            Some(_) => self.sessions.defer(session, now.steady_ms),
            None => {}
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.renewed = true;
        }
    }

    /// Returns the session of a new or extended grant. `own` is the session of the token's current
    /// grant.
    ///
    /// 1. For [`LeaseKind::Session`], a new session.
    /// 2. For [`LeaseKind::Lease`], the current session, with the new lease, or none.
    /// 3. For [`LeaseKind::Untied`], none.
    #[inline(always)]
    pub fn bind(
        &mut self,
        id: EntryId,
        own: SessionId,
        lease_kind: LeaseKind,
        lease_ms: u64,
        client_id: u64,
    ) -> SessionId {
        match lease_kind {
            LeaseKind::Session { keep_ms } => self.bind_session(id, lease_ms, keep_ms, client_id),
            LeaseKind::Untied => SessionId::NONE,
            LeaseKind::Lease if unlikely(own.is_session()) => {
                self.sessions.set_lease(own, lease_ms);
                own
            }
            LeaseKind::Lease => SessionId::NONE,
        }
    }

    fn bind_session(
        &mut self,
        id: EntryId,
        lease_ms: u64,
        keep_ms: Option<u64>,
        client_id: u64,
    ) -> SessionId {
        match self.entries.name(id) {
            Some(name) => self
                .sessions
                .bind(client_id, name.clone(), lease_ms, keep_ms),
            None => SessionId::NONE,
        }
    }

    /// Replicates the grant of this token even if the grant is unchanged.
    ///
    /// A client can repeat or extend a grant and then call WAIT to learn that the replicas have it.
    /// WAIT only covers what its own connection has written, so there must be something to
    /// replicate.
    #[inline(never)]
    pub fn force_propagate(&mut self, id: EntryId, token: &Token) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.forced.push(token.clone());
        }
    }

    /// Turns the changes into effects, and updates the sessions and the replica waits. Returns the
    /// deliveries, if there are any.
    #[inline(always)]
    pub fn commit(&mut self) -> Option<Box<Deliveries>> {
        if unlikely(!self.sessions.is_empty()) {
            self.follow_sessions();
        }
        if unlikely(!self.replica_waits.is_empty()) {
            self.follow_replica_waits();
        }
        if let (Some(name), Some(entry)) = (self.entries.first_name, &self.entries.first) {
            commit_entry(|| EffectName::Own(name), entry, self.environment.effects);
        }
        if unlikely(!self.entries.others.is_empty()) {
            commit_entries(self.entries.others, self.environment.effects);
        }
        debug_assert!(
            self.lists.are_worked_off(),
            "names or waiters are left to look at"
        );
        *self.in_use = false;
        let concerns_others = unlikely(!self.lists.deliveries.is_empty());
        concerns_others.then(|| self.lists.take_deliveries())
    }

    /// Brings the replica waits up to date with the grants that they follow.
    #[inline(never)]
    fn follow_replica_waits(&mut self) {
        for (name, entry) in self.entries.iter() {
            let before = entry.stored().map_or(&FREE, |stored| &stored.lock);
            if let Some(after) = entry
                .after
                .as_ref()
                .filter(|_| self.replica_waits.concerns(name))
            {
                for difference in before.holders().differences(after.holders()) {
                    self.replica_waits.follow(name, difference);
                }
            }
        }
        self.follow_begun();
        let completions = &mut self.lists.deliveries.completions;
        self.replica_waits
            .end_lost(&mut |id, end| completions.push(Completion::of_replica_wait(id, end)));
    }

    /// Ends the grants whose first replica wait has begun in this operation and that it has ended
    /// again.
    fn follow_begun(&mut self) {
        for grant in self.replica_waits.take_begun() {
            let Some((name, token, _)) = self.replica_waits.grant(grant) else {
                continue;
            };
            let (name, token) = (name.clone(), token.clone());
            if self
                .lock_at(&name)
                .is_none_or(|lock| lock.holder(&token).is_none())
            {
                self.replica_waits.end_grant(grant);
            }
        }
    }

    /// Ends a token's grant that replica waits follow, unless the token has held the name since
    /// before this operation, or since its first wait in this operation began.
    pub fn end_broken_grant(&mut self, name: &Name, token: &Token) {
        if let Some(grant) = self.replica_waits.grant_at(name, token) {
            let id = self.entry(name);
            let before = self.lock_before(id).holder(token).map(|own| own.fence);
            let lock = self.lock(id);
            let is_held = lock.is_some_and(|lock| lock.holder(token).is_some());
            self.replica_waits.end_unless_held(grant, before, is_held);
        }
    }

    /// Prepares the replica waits of a token for a new grant of these names. Those for a grant that
    /// has ended are lost. The others are confirmed, so their end takes back no hand-over.
    #[inline(never)]
    pub fn follow_hand_over(&mut self, token: &Token, names: &Names) {
        for name in names {
            self.end_broken_grant(name, token);
        }
        self.replica_waits.confirm(token, names);
    }

    /// Brings the sessions up to date with the changes of their grants.
    fn follow_sessions(&mut self) {
        let now = self.now();
        for (_, entry) in self.entries.iter() {
            let before = entry.stored().map_or(&FREE, |stored| &stored.lock);
            if let Some(after) = &entry.after {
                for difference in &before.holders().differences(after.holders()) {
                    self.sessions.follow(difference, now);
                }
            }
        }
        self.sessions.drop_unfollowed();
    }
}

fn commit_entries(entries: &mut OtherEntries, effects: &mut Effects<'_>) {
    for (name, entry) in mem::take(entries) {
        let other = || EffectName::Other(Box::new(name.clone()));
        commit_entry(other, &entry, effects);
    }
}

/// Adds the effects of the changes at one name.
#[inline(always)]
fn commit_entry<'n>(name: impl Fn() -> EffectName<'n>, entry: &Entry, effects: &mut Effects<'n>) {
    let mut add = |change| {
        let name = name();
        effects.push(Effect { name, change });
    };
    match (entry.stored(), &entry.after) {
        // Each grant is new and has an effect, so a forced one needs no other.
        (None, Some(made)) => effect::make(made, add),
        (None, None) => {}
        (Some(_), Some(after)) if likely(after.is_free()) => add(Change::Delete),
        (Some(before), Some(after)) if is_handed_over(&before.lock, after) => {
            effect::make(after, add);
        }
        (Some(before), after) => commit_held(name, before, after.as_ref(), entry, effects),
    }
}

/// Returns true if a lock passed from one exclusive holder to another token.
#[inline]
fn is_handed_over(before: &Lock, after: &Lock) -> bool {
    let holders = before.holders().only().zip(after.holders().only());
    before.mode() == Mode::Exclusive && holders.is_some_and(|(one, other)| one.token != other.token)
}

/// Like [`commit_entry`], for a lock that had a holder before and has one after.
fn commit_held<'n>(
    name: impl Fn() -> EffectName<'n>,
    before: &Stored,
    after: Option<&Lock>,
    entry: &Entry,
    effects: &mut Effects<'n>,
) {
    let here = |change| Effect {
        name: name(),
        change,
    };
    let is_as_before = after.is_none() && entry.forced.is_empty();
    let after = after.unwrap_or(&before.lock);
    if is_as_before && before.expiry_ms == after.latest_deadline_ms() {
        return;
    }
    let first = effects.len();
    effect::between(before, after, &mut |change| effects.push(here(change)));
    if entry.renewed {
        effect::condense(effects.get_mut(first..).unwrap_or_default(), before);
    }
    if unlikely(!entry.forced.is_empty()) {
        let changes = effects.get_mut(first..).unwrap_or_default();
        effect::mark_raised(changes, &before.lock);
    }
    for token in &entry.forced {
        let changes = effects.get(first..).unwrap_or_default();
        let forced = effect::forced(changes, after, token);
        effects.extend(forced.map(here));
    }
}
