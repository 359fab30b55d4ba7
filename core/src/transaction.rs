//! The locks that one operation touches: as they were, and as they will be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::{mem, ptr};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use crate::branch::{likely, unlikely};
use crate::decision::Deliveries;
use crate::effect::{self, Change, Effect, EffectName, Effects};
use crate::state::lost_holds::LostHold;
use crate::state::queue::Position;
use crate::state::sessions::Sessions;
use crate::store::{Environment, KeyState};
use crate::values::holder::{Holder, Mode};
use crate::values::holders::Difference;
use crate::values::lock::{Lock, Stored};
use crate::values::moment::{has_passed, Moment};
use crate::values::name::{Name, Names};
use crate::values::request::Life;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// What an operation has read, and what it changes. Nothing of it is in the keyspace before
/// [`Transaction::commit`] has made effects of it and these were applied.
pub struct Transaction<'t, 'e, 'n> {
    /// The world outside.
    pub environment: &'t mut Environment<'e, 'n>,
    /// Whether the table was told of everything that happened to keys.
    pub nothing_touched: bool,
    /// The table's.
    pub sessions: &'t mut Sessions,
    entries: Entries<'t, 'n>,
    /// The steady clock, once it was looked at.
    steady_ms: Option<u64>,
    /// What it leaves to be done.
    pub lists: &'t mut Lists,
    /// Whether a lock that was changed may have several holders.
    pub any_shared: bool,
    /// How many leases were found to have ended.
    pub expirations: u64,
    /// How many steps the operation took so far: names looked at, waiters taken out or granted.
    pub steps: u64,
    /// The workspace's.
    in_use: &'t mut bool,
}

/// What a transaction works with. The table keeps it from one to the next: most operations need none of
/// it, and those that do need hardly any allocation.
#[derive(Default)]
pub struct Workspace {
    others: OtherEntries,
    lists: Lists,
    /// Whether a transaction works with it. One that is over has left it empty, unless it panicked.
    in_use: bool,
}

/// The lists of a transaction.
#[derive(Default)]
pub struct Lists {
    /// Entries whose locks or queues were changed and whose names were not settled since.
    pub changed: Vec<EntryId>,
    /// Waiters to look at, whatever happened at their names.
    pub again: Vec<Position>,
    /// Whose wait is over, and what is to be published.
    pub deliveries: Box<Deliveries>,
    /// For the deliveries of the next operation, while this one's are carried out.
    spare: Option<Box<Deliveries>>,
    /// For the waiters that are to be looked at.
    pub heap: BinaryHeap<Reverse<Position>>,
    /// Tokens that wait elsewhere and were granted something, and what.
    pub granted: Vec<(Token, Names)>,
    /// Holds that were found to have ended without a release.
    pub lost_holds: Vec<LostHold>,
}

impl Workspace {
    /// Takes back what has been delivered, for the room that it has.
    pub fn reuse(&mut self, mut deliveries: Box<Deliveries>) {
        deliveries.clear();
        self.lists.spare = Some(deliveries);
    }

    /// Empties it of what a transaction left that panicked.
    #[cold]
    #[inline(never)]
    fn clear(&mut self) {
        self.others.clear();
        self.lists.clear();
    }
}

impl Lists {
    #[inline(never)]
    fn take_deliveries(&mut self) -> Box<Deliveries> {
        let spare = self.spare.take().unwrap_or_default();
        mem::replace(&mut self.deliveries, spare)
    }

    /// Whether nothing is left to be looked at.
    fn are_worked_off(&self) -> bool {
        self.changed.is_empty() && self.again.is_empty() && self.granted.is_empty()
    }

    fn clear(&mut self) {
        self.changed.clear();
        self.again.clear();
        self.deliveries.clear();
        self.granted.clear();
        self.lost_holds.clear();
    }
}

/// A name that the transaction has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(usize);

impl EntryId {
    /// The entry of the first of the operation's names.
    const FIRST: Self = Self(0);
}

/// The lock of a name without a key.
static FREE: Lock = Lock::free();

/// What the transaction has read. Most operations are about one name and read no other: its entry lies here
/// itself.
struct Entries<'t, 'n> {
    /// The first of the names that the operation is about.
    first_name: Option<&'n Name>,
    /// What was read of that.
    first: Option<Entry>,
    others: &'t mut OtherEntries,
}

type OtherEntries = IndexMap<Name, Entry, RandomState>;

impl Entries<'_, '_> {
    /// Whether this is the first of the operation's names, and not a copy of it: mostly it is.
    #[inline(always)]
    fn is_first_itself(&self, name: &Name) -> bool {
        self.first_name.is_some_and(|first| ptr::eq(first, name))
    }

    #[inline(always)]
    fn find(&self, name: &Name) -> Option<EntryId> {
        if likely(self.is_first_itself(name)) {
            return self.first.is_some().then_some(EntryId::FIRST);
        }
        self.find_other(name)
    }

    #[inline(never)]
    fn find_other(&self, name: &Name) -> Option<EntryId> {
        if self.first_name == Some(name) {
            return self.first.is_some().then_some(EntryId::FIRST);
        }
        let at = self.others.get_index_of(name)?;
        Some(EntryId(at + 1))
    }

    #[inline(always)]
    fn insert(&mut self, name: &Name, before: KeyState) -> EntryId {
        if likely(self.is_first_itself(name)) {
            self.first = Some(Entry::read(before));
            return EntryId::FIRST;
        }
        self.insert_other(name, before)
    }

    #[inline(never)]
    fn insert_other(&mut self, name: &Name, before: KeyState) -> EntryId {
        if self.first_name == Some(name) {
            self.first = Some(Entry::read(before));
            return EntryId::FIRST;
        }
        let (at, _) = self.others.insert_full(name.clone(), Entry::read(before));
        EntryId(at + 1)
    }

    #[inline(always)]
    fn get(&self, id: EntryId) -> Option<&Entry> {
        if likely(id == EntryId::FIRST) {
            self.first.as_ref()
        } else {
            self.get_other(id)
        }
    }

    #[inline(never)]
    fn get_other(&self, EntryId(number): EntryId) -> Option<&Entry> {
        let (_, entry) = self.others.get_index(number.checked_sub(1)?)?;
        Some(entry)
    }

    #[inline(always)]
    fn get_mut(&mut self, id: EntryId) -> Option<&mut Entry> {
        if likely(id == EntryId::FIRST) {
            self.first.as_mut()
        } else {
            self.get_other_mut(id)
        }
    }

    #[inline(never)]
    fn get_other_mut(&mut self, EntryId(number): EntryId) -> Option<&mut Entry> {
        let (_, entry) = self.others.get_index_mut(number.checked_sub(1)?)?;
        Some(entry)
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
    /// The lock as it will be, once it is another one than before.
    after: Option<Lock>,
    affirmed: Vec<Token>,
    /// Whether the operation renews a session here.
    renewed: bool,
    /// What [`crate::store::Store::is_here`] said, if it was asked.
    is_here: Option<bool>,
}

impl Entry {
    #[inline]
    const fn read(before: KeyState) -> Self {
        Self {
            before,
            after: None,
            affirmed: Vec::new(),
            renewed: false,
            is_here: None,
        }
    }

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

    /// The lock as it will be, to be changed: at first a copy of what was read. What is replaced as a
    /// whole needs none.
    fn own_lock(&mut self) -> &mut Lock {
        let before = match &self.before {
            KeyState::Lock(stored) => &stored.lock,
            KeyState::Empty | KeyState::OtherType => &FREE,
        };
        self.after.get_or_insert_with(|| before.clone())
    }
}

impl<'t, 'e, 'n> Transaction<'t, 'e, 'n> {
    /// A transaction that has read nothing, of an operation that is about these names, or mostly these.
    #[inline(always)]
    pub fn new(
        names: &'n [Name],
        environment: &'t mut Environment<'e, 'n>,
        sessions: &'t mut Sessions,
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
            entries: Entries {
                first_name: names.first(),
                first: None,
                others,
            },
            steady_ms: None,
            lists,
            any_shared: false,
            expirations: 0,
            steps: 0,
            in_use,
        }
    }

    /// The wall clock in ms: what leases end by.
    pub fn now_ms(&self) -> u64 {
        self.environment.wall_us / 1000
    }

    /// The steady clock in ms: what waits end by.
    #[inline]
    pub fn steady_ms(&mut self) -> u64 {
        match self.steady_ms {
            Some(ms) => ms,
            None => self.look_at_steady_clock(),
        }
    }

    #[inline(never)]
    fn look_at_steady_clock(&mut self) -> u64 {
        let ms = self.environment.store.steady_ms();
        self.steady_ms = Some(ms);
        ms
    }

    /// Both clocks.
    pub fn moment(&mut self) -> Moment {
        Moment {
            us: self.environment.wall_us,
            steady_ms: self.steady_ms(),
        }
    }

    /// The entry of a name, which is read if it wasn't yet.
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
            // Not moved as a whole, as a lock has to be.
            KeyState::Empty => return self.entries.insert(name, KeyState::Empty),
            // Those are to be told who wait for it.
            KeyState::OtherType => false,
        };
        let id = self.entries.insert(name, before);
        if unlikely(!is_up_to_date) {
            self.bring_up_to_date(id);
        }
        id
    }

    /// The name of an entry.
    pub fn name_of(&self, id: EntryId) -> Option<&Name> {
        self.entries.name(id)
    }

    /// The lock of a name, without the leases that have ended; `None` for another type's key.
    #[inline(always)]
    pub fn lock_at(&mut self, name: &Name) -> Option<&Lock> {
        let id = self.entry(name);
        self.lock(id)
    }

    /// The lock of an entry, without the leases that have ended; `None` for another type's key.
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

    #[inline(never)]
    fn grant_beside(&mut self, id: EntryId, mode: Mode, holder: Holder) {
        self.change(id, |lock| lock.grant(mode, holder));
    }

    /// Removes the grant of a token, which holds it, from the lock of an entry.
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

    #[inline(never)]
    fn remove_one_of(&mut self, id: EntryId, token: &Token) {
        self.change(id, |lock| lock.remove(token));
    }

    /// Changes the grant of a token; its token and fence stay.
    pub fn update(&mut self, id: EntryId, token: &Token, change: impl FnOnce(&mut Holder)) {
        if self.entry_to_change(id).is_some() {
            self.change(id, |lock| lock.update(token, change));
        }
    }

    /// An entry whose lock is going to be changed: none where the key is of another type.
    #[inline(always)]
    fn entry_to_change(&mut self, id: EntryId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id)?;
        if unlikely(matches!(entry.before, KeyState::OtherType)) {
            return None;
        }
        self.lists.changed.push(id);
        Some(entry)
    }

    /// Changes the lock of such an entry where more than one may hold.
    fn change<T>(&mut self, id: EntryId, change: impl FnOnce(&mut Lock) -> T) {
        if let Some(entry) = self.entries.get_mut(id) {
            let lock = entry.own_lock();
            change(lock);
            self.any_shared |= lock.holders().len() > 1;
        }
    }

    /// Has a name settled whose lock may be as it was: somebody has left its queue.
    pub fn settle_again(&mut self, name: &Name) {
        let id = self.entry(name);
        self.lists.changed.push(id);
    }

    /// Whether nothing of a stored lock has ended meanwhile.
    ///
    /// A key that expires before its leases do was given an EXPIRE by hand: that shortens them.
    fn is_up_to_date(&self, stored: &Stored) -> bool {
        let Stored { lock, expiry_ms } = stored;
        let expiry_ms = expiry_ms.unwrap_or(u64::MAX);
        let shortened = lock.latest_deadline_ms().is_some_and(|ms| ms > expiry_ms);
        let ended = lock
            .earliest_deadline_ms()
            .is_some_and(|ms| has_passed(ms.min(expiry_ms), self.now_ms()));
        !shortened && !ended && !self.sessions.has_orphan_at(lock)
    }

    /// Takes away from the lock of an entry what has ended meanwhile.
    #[cold]
    fn bring_up_to_date(&mut self, id: EntryId) {
        // It may have lost some of several holders.
        self.any_shared = true;
        self.lists.changed.push(id);
        let moment = self.moment();
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
        self.expirations += self.sessions.expire_and_renew(lock, moment);
        for Difference { before, after } in before.holders().differences(lock.holders()) {
            if let (Some(own), None) = (before, after) {
                let loss = self.sessions.loss_of(own);
                let lost = LostHold::of(own, loss, moment.ms());
                self.lists.lost_holds.push(lost);
            }
        }
    }

    /// Whether a name held nothing before this operation.
    pub fn was_absent(&mut self, name: &Name) -> bool {
        let id = self.entry(name);
        let entry = self.entries.get(id);
        entry.is_some_and(|entry| entry.before == KeyState::Empty)
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
        let known = self.entries.get(id).and_then(|entry| entry.is_here);
        let is_here = known.unwrap_or_else(|| self.environment.store.is_here(name));
        if let Some(entry) = self.entries.get_mut(id) {
            entry.is_here = Some(is_here);
        }
        !is_here
    }

    /// The names that the operation has read so far.
    pub fn names_read(&self) -> impl Iterator<Item = &Name> {
        self.entries.iter().map(|(name, _)| name)
    }

    /// The lock of a name as the operation leaves it, without being read for it; `None` for another type's key and
    /// where something has ended that no operation has seen yet.
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

    /// Whether [`Transaction::is_away`] was asked of the name of an entry, and said so.
    pub fn was_away(&self, id: EntryId) -> bool {
        let entry = self.entries.get(id);
        entry.is_some_and(|entry| entry.is_here == Some(false))
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
            self.update(id, &own.token, |own| own.deadline_ms = deadline_ms);
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.renewed = true;
        }
    }

    /// The session of a grant or an extension: a new one, or the one that the token's own grant has.
    #[inline(always)]
    pub fn bind(
        &mut self,
        id: EntryId,
        own: SessionId,
        life: Life,
        lease_ms: u64,
        client_id: u64,
    ) -> SessionId {
        match life {
            Life::Session { keep_ms } => self.bind_session(id, lease_ms, keep_ms, client_id),
            Life::Untied => SessionId::NONE,
            Life::Lease if unlikely(own.is_session()) => {
                self.sessions.set_lease(own, lease_ms);
                own
            }
            Life::Lease => SessionId::NONE,
        }
    }

    #[inline(never)]
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

    /// Has the grant of this token told to the replicas even if it comes out as it was.
    ///
    /// Who repeats or extends a grant and then asks by WAIT whether the replicas have it must not
    /// be told so because there was nothing to send: WAIT looks at what the connection itself wrote.
    #[inline(never)]
    pub fn affirm(&mut self, id: EntryId, token: &Token) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.affirmed.push(token.clone());
        }
    }

    /// Sums up: what changed, for the keyspace and for the sessions; what others are told.
    #[inline(always)]
    pub fn commit(&mut self) -> Option<Box<Deliveries>> {
        if unlikely(!self.sessions.is_empty()) {
            self.follow_sessions();
        }
        if let (Some(name), Some(entry)) = (self.entries.first_name, &self.entries.first) {
            commit_entry(|| EffectName::Own(name), entry, self.environment.effects);
        }
        if unlikely(!self.entries.others.is_empty()) {
            commit_entries(self.entries.others, self.environment.effects);
        }
        debug_assert!(
            self.lists.are_worked_off(),
            "left for an operation that it doesn't concern"
        );
        *self.in_use = false;
        let concerns_others = unlikely(!self.lists.deliveries.is_empty());
        concerns_others.then(|| self.lists.take_deliveries())
    }

    #[inline(never)]
    fn follow_sessions(&mut self) {
        let moment = self.moment();
        for (_, entry) in self.entries.iter() {
            let before = entry.stored().map_or(&FREE, |stored| &stored.lock);
            if let Some(after) = &entry.after {
                for difference in &before.holders().differences(after.holders()) {
                    self.sessions.follow(difference, moment);
                }
            }
        }
        self.sessions.drop_unfollowed();
    }
}

#[inline(never)]
fn commit_entries(entries: &mut OtherEntries, effects: &mut Effects<'_>) {
    for (name, entry) in mem::take(entries) {
        let other = || EffectName::Other(Box::new(name.clone()));
        commit_entry(other, &entry, effects);
    }
}

/// The effects of what became of one name.
#[inline(always)]
fn commit_entry<'n>(name: impl Fn() -> EffectName<'n>, entry: &Entry, effects: &mut Effects<'n>) {
    let mut add = |change| {
        let name = name();
        effects.push(Effect { name, change });
    };
    match (entry.stored(), &entry.after) {
        // Each grant is new, and an affirmation of one adds nothing.
        (None, Some(made)) => effect::make(made, add),
        (None, None) => {}
        (Some(_), Some(after)) if likely(after.is_free()) => add(Change::Delete),
        (Some(before), after) => commit_held(name, before, after.as_ref(), entry, effects),
    }
}

/// As [`commit_entry`], where somebody held the lock before and somebody holds it after.
#[inline(never)]
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
    let is_as_before = after.is_none() && entry.affirmed.is_empty();
    let after = after.unwrap_or(&before.lock);
    if is_as_before && before.expiry_ms == after.latest_deadline_ms() {
        return;
    }
    let first = effects.len();
    effect::between(before, after, &mut |change| effects.push(here(change)));
    if entry.renewed {
        effect::condense(effects.get_mut(first..).unwrap_or_default(), before);
    }
    for token in &entry.affirmed {
        let changes = effects.get(first..).unwrap_or_default();
        let affirmed = effect::affirmed(changes, after, token);
        effects.extend(affirmed.map(here));
    }
}
