//! The locks that one order touches, on copies: as they were, and as they will be.

use indexmap::IndexMap;

use crate::desk::Wake;
use crate::effect::{self, Effect, Stored};
use crate::fence::Fences;
use crate::lock::Lock;
use crate::name::Name;
use crate::order::{Life, Names};
use crate::queue::{Place, Waiter};
use crate::session::{TieId, Ties};
use crate::token::Token;
use crate::Moment;

/// What a name holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// No key.
    Empty,
    /// A lock.
    Lock(Stored),
    /// A key of another type.
    Foreign,
}

/// What the desk asks the server.
pub trait Server {
    /// What a name holds now. Called at most once a name and order.
    fn read(&mut self, name: &Name) -> Slot;

    /// Whether a name without a key has none at another server either: its slot is served here, and
    /// not on its way to or from another one. Whatever the client that gives the order may do.
    fn is_here(&mut self, name: &Name) -> bool;

    /// Whether something happened at a name that the desk was not told of yet.
    fn is_touched(&mut self, name: &Name) -> bool;

    /// Whether there is any such name.
    fn is_any_touched(&mut self) -> bool;

    /// Whether a waiter has the rights to what it waits for, as they are now.
    fn permits(&mut self, waiter: &Waiter) -> bool;
}

/// What the desk is told of the world outside with every order.
pub struct World<'a> {
    /// Now.
    pub moment: Moment,
    /// Numbers the grants.
    pub fences: &'a Fences,
    /// How many may wait; 0: no limit.
    pub max_waiters: usize,
    /// Where the locks are.
    pub server: &'a mut dyn Server,
}

/// The locks that an order touches: as they were, and as they will be.
pub struct Bench<'w, 'a> {
    /// The world outside.
    pub world: &'w mut World<'a>,
    /// Whether the desk was told of everything that happened to keys.
    pub nothing_touched: bool,
    /// The desk's, for the time of the order.
    pub ties: Ties,
    /// In the order in which they were opened.
    drafts: IndexMap<Name, Draft>,
    free: Lock,
    /// Names whose locks were changed and that were not settled since.
    pub changed: Vec<Name>,
    /// Waiters to look at, whatever happened at their names.
    pub again: Vec<Place>,
    /// Whom to wake, with what.
    pub wakes: Vec<Wake>,
    /// Tokens that were granted something, and what.
    pub granted: Vec<(Token, Names)>,
    /// How many leases were found to have ended.
    pub lapses: u64,
    /// How many steps the order took so far: names looked at, waiters taken out or granted.
    pub steps: u64,
}

struct Draft {
    before: Slot,
    /// The lock as it will be, once it is another one than before.
    after: Option<Lock>,
    affirmed: Vec<Token>,
    /// Whether the order renews a session here.
    renewed: bool,
    /// What [`Server::is_here`] said, if it was asked.
    is_here: Option<bool>,
}

impl Draft {
    fn stored(&self) -> Option<&Stored> {
        match &self.before {
            Slot::Lock(stored) => Some(stored),
            Slot::Empty | Slot::Foreign => None,
        }
    }

    /// The lock as it is by now; `None` where there is none.
    fn lock(&self) -> Option<&Lock> {
        let before = self.stored().map(|stored| &stored.lock);
        self.after.as_ref().or(before)
    }
}

/// What comes of a bench.
pub struct Finished {
    /// What the order changed, and what it affirmed.
    pub effects: Vec<Effect>,
    /// The ties, as they are now.
    pub ties: Ties,
    /// Whom to wake, with what.
    pub wakes: Vec<Wake>,
}

impl<'w, 'a> Bench<'w, 'a> {
    /// A bench with nothing on it, and room for so many names.
    pub fn new(world: &'w mut World<'a>, ties: Ties, names: usize) -> Self {
        let nothing_touched = !world.server.is_any_touched();
        Self {
            world,
            nothing_touched,
            ties,
            drafts: IndexMap::with_capacity(names),
            free: Lock::free(),
            changed: Vec::new(),
            again: Vec::new(),
            wakes: Vec::new(),
            granted: Vec::new(),
            lapses: 0,
            steps: 0,
        }
    }

    /// Now.
    pub fn moment(&self) -> Moment {
        self.world.moment
    }

    /// The lock of a name, without the leases that have ended; `None` for another type's key.
    pub fn open(&mut self, name: &Name) -> Option<&Lock> {
        let at = self.index_of(name);
        let (_, draft) = self.drafts.get_index(at)?;
        match draft.before {
            Slot::Foreign => None,
            Slot::Empty | Slot::Lock(_) => Some(draft.lock().unwrap_or(&self.free)),
        }
    }

    /// The lock of a name, to be changed; `None` for another type's key.
    pub fn edit(&mut self, name: &Name) -> Option<&mut Lock> {
        let at = self.index_of(name);
        let (_, draft) = self.drafts.get_index_mut(at)?;
        if draft.before == Slot::Foreign {
            return None;
        }
        self.changed.push(name.clone());
        if draft.after.is_none() {
            draft.after = Some(draft.lock().cloned().unwrap_or_default());
        }
        draft.after.as_mut()
    }

    /// Where a name's draft is; it is read if it wasn't yet.
    fn index_of(&mut self, name: &Name) -> usize {
        if let Some(at) = self.drafts.get_index_of(name) {
            return at;
        }
        self.steps += 1;
        let before = self.world.server.read(name);
        let after = match &before {
            Slot::Lock(stored) => self.brought_up_to_date(stored),
            Slot::Empty | Slot::Foreign => None,
        };
        // Of another type's key those are to be told who wait for it.
        if after.is_some() || before == Slot::Foreign {
            self.changed.push(name.clone());
        }
        let draft = Draft {
            before,
            after,
            affirmed: Vec::new(),
            renewed: false,
            is_here: None,
        };
        self.drafts.insert_full(name.clone(), draft).0
    }

    /// A stored lock without what has ended meanwhile, if anything has.
    ///
    /// A key that expires before its leases do was given an EXPIRE by hand: that shortens them.
    fn brought_up_to_date(&mut self, stored: &Stored) -> Option<Lock> {
        let Stored { lock, expiry_ms } = stored;
        let expiry_ms = expiry_ms.unwrap_or(u64::MAX);
        let shortened = lock.latest_deadline_ms().is_some_and(|ms| ms > expiry_ms);
        let moment = self.world.moment;
        let ended = lock
            .earliest_deadline_ms()
            .is_some_and(|ms| ms.min(expiry_ms) <= moment.ms());
        if !shortened && !ended && !self.ties.has_orphan_at(lock) {
            return None;
        }
        let mut lock = lock.clone();
        lock.shorten(expiry_ms);
        self.lapses += self.ties.uphold(&mut lock, moment);
        Some(lock)
    }

    /// Whether a name held nothing before this order.
    pub fn came_empty(&mut self, name: &Name) -> bool {
        let at = self.index_of(name);
        let draft = self.drafts.get_index(at);
        draft.is_some_and(|(_, draft)| draft.before == Slot::Empty)
    }

    /// Whether the order opened a name already.
    pub fn has_opened(&self, name: &Name) -> bool {
        self.drafts.contains_key(name)
    }

    /// How many hold a name now.
    pub fn holders_at(&mut self, name: &Name) -> usize {
        self.open(name).map_or(0, |lock| lock.holders().len())
    }

    /// Whether a name's lock may be at another server just now.
    pub fn is_away(&mut self, name: &Name) -> bool {
        if !self.came_empty(name) {
            return false;
        }
        let known = self.drafts.get(name).and_then(|draft| draft.is_here);
        let is_here = known.unwrap_or_else(|| self.world.server.is_here(name));
        if let Some(draft) = self.drafts.get_mut(name) {
            draft.is_here = Some(is_here);
        }
        !is_here
    }

    /// Whether [`Bench::is_away`] was asked of a name, and said so.
    pub fn was_away(&self, name: &Name) -> bool {
        let draft = self.drafts.get(name);
        draft.is_some_and(|draft| draft.is_here == Some(false))
    }

    /// Renews the grant with this tie, if it is due.
    pub fn renew(&mut self, name: &Name, tie: TieId) {
        let moment = self.world.moment;
        let own = self.open(name).and_then(|lock| lock.holders().tied(tie));
        let Some(own) = own.cloned() else { return };
        let deadline_ms = self.ties.renewal(&own, moment);
        if let (Some(deadline_ms), Some(lock)) = (deadline_ms, self.edit(name)) {
            lock.update(&own.token, |own| own.deadline_ms = deadline_ms);
        }
        if let Some(draft) = self.drafts.get_mut(name) {
            draft.renewed = true;
        }
    }

    /// The tie of a grant or an extension at `name`: a new one for a session, or the one it has.
    pub fn bind(
        &mut self,
        name: &Name,
        token: &Token,
        life: Life,
        lease_ms: u64,
        client_id: u64,
    ) -> TieId {
        match life {
            Life::Session => self.ties.tie(client_id, name.clone(), lease_ms),
            Life::Lease => {
                let own = self.open(name).and_then(|lock| lock.holder(token));
                let id = own.map_or(TieId::NONE, |own| own.tie);
                self.ties.set_lease(id, lease_ms);
                id
            }
        }
    }

    /// Has the grant of this token told to the replicas even if it comes out as it was.
    ///
    /// Who repeats or extends a grant and then asks by WAIT whether the replicas have it must not
    /// be told so because there was nothing to send: WAIT looks at what the connection itself wrote.
    pub fn affirm(&mut self, name: &Name, token: &Token) {
        if let Some(draft) = self.drafts.get_mut(name) {
            draft.affirmed.push(token.clone());
        }
    }

    /// Sums up: what changed, for the keyspace and for the ties.
    pub fn finish(mut self) -> Finished {
        let mut effects = Vec::new();
        for (name, draft) in &self.drafts {
            let before = draft.stored();
            let Some(after) = draft.lock() else { continue };
            let expiry_ms = before.and_then(|stored| stored.expiry_ms);
            let is_as_before = draft.after.is_none() && draft.affirmed.is_empty();
            if is_as_before && expiry_ms == after.latest_deadline_ms() {
                continue;
            }
            let old = before.map_or(&self.free, |stored| &stored.lock).holders();
            let differences = old.differences(after.holders());
            let mut changes = effect::between(before, after, &differences);
            if draft.renewed {
                effect::condense(&mut changes, before);
            }
            for token in &draft.affirmed {
                effect::affirm(&mut changes, after, token);
            }
            effects.extend(changes.into_iter().map(|change| Effect {
                name: name.clone(),
                change,
            }));
            for difference in &differences {
                self.ties.follow(difference, self.world.moment);
            }
        }
        self.ties.drop_unfollowed();
        Finished {
            effects,
            ties: self.ties,
            wakes: self.wakes,
        }
    }
}
