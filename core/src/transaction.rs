//! The locks that one operation touches: as they were, and as they will be.

use std::borrow::Cow;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use smallvec::SmallVec;

use crate::decision::{Completion, Publication};
use crate::effect::{self, Effect, Effects};
use crate::state::queue::Position;
use crate::state::sessions::Sessions;
use crate::store::{Environment, KeyState};
use crate::values::lock::{Lock, Stored};
use crate::values::moment::Moment;
use crate::values::name::{Name, Names};
use crate::values::request::Life;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// What an operation has read, and what it changes. Nothing of it is in the keyspace before
/// [`Transaction::commit`] has made effects of it and these were applied.
pub struct Transaction<'t, 'e> {
    /// The world outside.
    pub environment: &'t mut Environment<'e>,
    /// Whether the table was told of everything that happened to keys.
    pub nothing_touched: bool,
    /// The table's.
    pub sessions: &'t mut Sessions,
    entries: Entries,
    free: Lock,
    /// The steady clock, once it was looked at.
    steady_ms: Option<u64>,
    /// Entries whose locks or queues were changed and whose names were not settled since.
    pub changed: SmallVec<[EntryId; 1]>,
    /// Whether one of these may have several holders.
    pub any_shared: bool,
    /// Waiters to look at, whatever happened at their names.
    pub again: Vec<Position>,
    /// Whose wait is over.
    pub completions: Vec<Completion>,
    /// What is to be published.
    pub publications: Vec<Publication>,
    /// Tokens that wait elsewhere and were granted something, and what.
    pub granted: Vec<(Token, Names)>,
    /// How many leases were found to have ended.
    pub expirations: u64,
    /// How many steps the operation took so far: names looked at, waiters taken out or granted.
    pub steps: u64,
}

/// A name that the transaction has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(usize);

/// What the transaction has read, in that order. Most operations read one name: that lies here itself.
#[derive(Default)]
struct Entries {
    first: Option<(Name, Entry)>,
    others: Option<Box<IndexMap<Name, Entry, RandomState>>>,
}

impl Entries {
    fn find(&self, name: &Name) -> Option<EntryId> {
        match &self.first {
            Some((first, _)) if first == name => Some(EntryId(0)),
            _ => {
                let at = self.others.as_ref()?.get_index_of(name)?;
                Some(EntryId(at + 1))
            }
        }
    }

    fn insert(&mut self, name: &Name, entry: Entry) -> EntryId {
        if self.first.is_none() {
            self.first = Some((name.clone(), entry));
            return EntryId(0);
        }
        let others = self.others.get_or_insert_default();
        let (at, _) = others.insert_full(name.clone(), entry);
        EntryId(at + 1)
    }

    fn get(&self, id: EntryId) -> Option<(&Name, &Entry)> {
        match id.0.checked_sub(1) {
            None => self.first.as_ref().map(|(name, entry)| (name, entry)),
            Some(at) => self.others.as_ref()?.get_index(at),
        }
    }

    fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry> {
        match id.0.checked_sub(1) {
            None => self.first.as_mut().map(|(_, entry)| entry),
            Some(at) => {
                let (_, entry) = self.others.as_mut()?.get_index_mut(at)?;
                Some(entry)
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        let first = self.first.iter().map(|(name, entry)| (name, entry));
        first.chain(self.others.iter().flat_map(|others| others.iter()))
    }
}

struct Entry {
    before: KeyState,
    /// The lock as it will be, once it is another one than before.
    after: Option<Lock>,
    affirmed: Vec<Token>,
    /// Whether the operation renews a session here.
    renewed: bool,
    /// What [`crate::store::Store::is_here`] said, if it was asked.
    is_here: Option<bool>,
}

impl Entry {
    fn stored(&self) -> Option<&Stored> {
        match &self.before {
            KeyState::Lock(stored) => Some(stored),
            KeyState::Empty | KeyState::OtherType => None,
        }
    }

    /// The lock as it is by now; `None` where there is none.
    fn lock(&self) -> Option<&Lock> {
        let before = self.stored().map(|stored| &stored.lock);
        self.after.as_ref().or(before)
    }
}

impl<'t, 'e> Transaction<'t, 'e> {
    /// A transaction that has read nothing.
    pub fn new(environment: &'t mut Environment<'e>, sessions: &'t mut Sessions) -> Self {
        let nothing_touched = !environment.store.is_any_touched();
        Self {
            environment,
            nothing_touched,
            sessions,
            entries: Entries::default(),
            free: Lock::free(),
            steady_ms: None,
            changed: SmallVec::new(),
            any_shared: false,
            again: Vec::new(),
            completions: Vec::new(),
            publications: Vec::new(),
            granted: Vec::new(),
            expirations: 0,
            steps: 0,
        }
    }

    /// The wall clock in ms: what leases end by.
    pub fn now_ms(&self) -> u64 {
        self.environment.wall_us / 1000
    }

    /// The steady clock in ms: what waits end by.
    pub fn steady_ms(&mut self) -> u64 {
        let store = &mut self.environment.store;
        *self.steady_ms.get_or_insert_with(|| store.steady_ms())
    }

    /// Both clocks.
    pub fn moment(&mut self) -> Moment {
        Moment {
            us: self.environment.wall_us,
            steady_ms: self.steady_ms(),
        }
    }

    /// The entry of a name, which is read if it wasn't yet.
    pub fn entry(&mut self, name: &Name) -> EntryId {
        match self.entries.find(name) {
            Some(id) => id,
            None => self.read(name),
        }
    }

    fn read(&mut self, name: &Name) -> EntryId {
        self.steps += 1;
        let before = self.environment.store.read(name);
        let after = match &before {
            KeyState::Lock(stored) => self.brought_up_to_date(stored),
            KeyState::Empty | KeyState::OtherType => None,
        };
        // Of another type's key those are to be told who wait for it.
        let is_changed = after.is_some() || before == KeyState::OtherType;
        let entry = Entry {
            before,
            after,
            affirmed: Vec::new(),
            renewed: false,
            is_here: None,
        };
        let id = self.entries.insert(name, entry);
        if is_changed {
            // It may have lost some of several holders.
            self.any_shared = true;
            self.changed.push(id);
        }
        id
    }

    /// The name of an entry.
    pub fn name_of(&self, id: EntryId) -> Option<&Name> {
        self.entries.get(id).map(|(name, _)| name)
    }

    /// The lock of a name, without the leases that have ended; `None` for another type's key.
    pub fn lock_at(&mut self, name: &Name) -> Option<&Lock> {
        let id = self.entry(name);
        self.lock(id)
    }

    /// The lock of an entry, without the leases that have ended; `None` for another type's key.
    pub fn lock(&self, id: EntryId) -> Option<&Lock> {
        let (_, entry) = self.entries.get(id)?;
        match entry.before {
            KeyState::OtherType => None,
            KeyState::Empty | KeyState::Lock(_) => Some(entry.lock().unwrap_or(&self.free)),
        }
    }

    /// Changes the lock of an entry. Not that of another type's key.
    ///
    /// What is to be changed comes borrowed while it is still as it was read: who replaces all of it
    /// needs no copy.
    pub fn change(&mut self, id: EntryId, change: impl FnOnce(Cow<'_, Lock>) -> Lock) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let lock = match (entry.after.take(), &entry.before) {
            (_, KeyState::OtherType) => return,
            (Some(after), _) => Cow::Owned(after),
            (None, KeyState::Lock(stored)) => Cow::Borrowed(&stored.lock),
            (None, KeyState::Empty) => Cow::Borrowed(&self.free),
        };
        let after = change(lock);
        self.any_shared |= after.holders().len() > 1;
        entry.after = Some(after);
        self.changed.push(id);
    }

    /// Has a name settled whose lock may be as it was: somebody has left its queue.
    pub fn settle_again(&mut self, name: &Name) {
        let id = self.entry(name);
        self.changed.push(id);
    }

    /// A stored lock without what has ended meanwhile, if anything has.
    ///
    /// A key that expires before its leases do was given an EXPIRE by hand: that shortens them.
    fn brought_up_to_date(&mut self, stored: &Stored) -> Option<Lock> {
        let Stored { lock, expiry_ms } = stored;
        let expiry_ms = expiry_ms.unwrap_or(u64::MAX);
        let shortened = lock.latest_deadline_ms().is_some_and(|ms| ms > expiry_ms);
        let ended = lock
            .earliest_deadline_ms()
            .is_some_and(|ms| ms.min(expiry_ms) <= self.now_ms());
        if !shortened && !ended && !self.sessions.has_orphan_at(lock) {
            return None;
        }
        let mut lock = lock.clone();
        lock.shorten(expiry_ms);
        let moment = self.moment();
        self.expirations += self.sessions.expire_and_renew(&mut lock, moment);
        Some(lock)
    }

    /// Whether a name held nothing before this operation.
    pub fn was_absent(&mut self, name: &Name) -> bool {
        let id = self.entry(name);
        let entry = self.entries.get(id);
        entry.is_some_and(|(_, entry)| entry.before == KeyState::Empty)
    }

    /// Whether the operation has read a name already.
    pub fn has_read(&self, name: &Name) -> bool {
        self.entries.find(name).is_some()
    }

    /// Whether a name's lock may be at another server just now.
    pub fn is_away(&mut self, name: &Name) -> bool {
        if !self.was_absent(name) {
            return false;
        }
        let id = self.entry(name);
        let known = self.entries.get(id).and_then(|(_, entry)| entry.is_here);
        let is_here = known.unwrap_or_else(|| self.environment.store.is_here(name));
        if let Some(entry) = self.entries.get_mut(id) {
            entry.is_here = Some(is_here);
        }
        !is_here
    }

    /// Whether [`Transaction::is_away`] was asked of the name of an entry, and said so.
    pub fn was_away(&self, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        entry.is_some_and(|(_, entry)| entry.is_here == Some(false))
    }

    /// Renews the grant with this session, if it is due.
    pub fn renew(&mut self, name: &Name, session: SessionId) {
        let id = self.entry(name);
        let moment = self.moment();
        let own = self
            .lock(id)
            .and_then(|lock| lock.holders().with_session(session));
        let Some(own) = own.cloned() else { return };
        if let Some(deadline_ms) = self.sessions.renewal(&own, moment) {
            self.change(id, |lock| {
                Lock::updated(lock, &own.token, |own| own.deadline_ms = deadline_ms)
            });
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.renewed = true;
        }
    }

    /// The session of a grant or an extension: a new one, or the one that the grant has.
    pub fn bind(
        &mut self,
        id: EntryId,
        token: &Token,
        life: Life,
        lease_ms: u64,
        client_id: u64,
    ) -> SessionId {
        match life {
            Life::Session { keep_ms } => match self.entries.get(id).map(|(name, _)| name) {
                Some(name) => self
                    .sessions
                    .bind(client_id, name.clone(), lease_ms, keep_ms),
                None => SessionId::NONE,
            },
            Life::Untied => SessionId::NONE,
            Life::Lease => {
                let own = self.lock(id).and_then(|lock| lock.holder(token));
                let session = own.map(|own| own.session);
                let session = session.filter(|session| session.is_session());
                let session = session.unwrap_or(SessionId::NONE);
                self.sessions.set_lease(session, lease_ms);
                session
            }
        }
    }

    /// Has the grant of this token told to the replicas even if it comes out as it was.
    ///
    /// Who repeats or extends a grant and then asks by WAIT whether the replicas have it must not
    /// be told so because there was nothing to send: WAIT looks at what the connection itself wrote.
    pub fn affirm(&mut self, id: EntryId, token: &Token) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.affirmed.push(token.clone());
        }
    }

    /// Sums up: what changed, for the keyspace and for the sessions.
    pub fn commit(&mut self) {
        for (name, entry) in self.entries.iter() {
            commit_entry(name, entry, self.environment.effects);
        }
        if !self.sessions.is_empty() {
            self.follow_sessions();
        }
    }

    fn follow_sessions(&mut self) {
        let moment = self.moment();
        for (_, entry) in self.entries.iter() {
            let before = entry.stored().map_or(&self.free, |stored| &stored.lock);
            if let Some(after) = &entry.after {
                for difference in &before.holders().differences(after.holders()) {
                    self.sessions.follow(difference, moment);
                }
            }
        }
        self.sessions.drop_unfollowed();
    }
}

/// The effects of what became of one name.
fn commit_entry(name: &Name, entry: &Entry, effects: &mut Effects) {
    let Some(after) = entry.lock() else { return };
    let before = entry.stored();
    let expiry_ms = before.and_then(|stored| stored.expiry_ms);
    let is_as_before = entry.after.is_none() && entry.affirmed.is_empty();
    if is_as_before && expiry_ms == after.latest_deadline_ms() {
        return;
    }
    let mut changes = effect::between(before, after);
    if entry.renewed {
        effect::condense(&mut changes, before);
    }
    for token in &entry.affirmed {
        effect::affirm(&mut changes, after, token);
    }
    for change in changes {
        effects.push(Effect {
            name: name.clone(),
            change,
        });
    }
}
