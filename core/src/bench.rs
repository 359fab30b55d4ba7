//! The locks that one order touches, on copies: as they were, and as they will be.

use std::collections::BTreeMap;

use crate::desk::Wake;
use crate::effect::{self, Effect, Stored};
use crate::fence::Fences;
use crate::lock::Lock;
use crate::name::Name;
use crate::order::Life;
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
    /// Not to be seen from here: the name's slot is on its way to or from another server, and the
    /// key may be there.
    Away,
}

/// Where locks are read.
pub trait Shelf {
    /// What the name holds now. Called at most once a name and order.
    fn read(&mut self, name: &Name) -> Slot;
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
    pub shelf: &'a mut dyn Shelf,
}

/// The locks that an order touches: as they were, and as they will be.
pub struct Bench<'w, 'a> {
    /// The world outside.
    pub world: &'w mut World<'a>,
    /// The desk's, for the time of the order.
    pub ties: Ties,
    drafts: BTreeMap<Name, Draft>,
    /// Whom to wake, with what.
    pub wakes: Vec<Wake>,
    /// How many leases were found to have ended.
    pub lapses: u64,
}

struct Draft {
    before: Slot,
    lock: Lock,
    affirmed: Vec<Token>,
}

impl<'w, 'a> Bench<'w, 'a> {
    /// A bench with nothing on it.
    pub fn new(world: &'w mut World<'a>, ties: Ties) -> Self {
        Self {
            world,
            ties,
            drafts: BTreeMap::new(),
            wakes: Vec::new(),
            lapses: 0,
        }
    }

    /// Now, in ms since the epoch.
    pub fn now_ms(&self) -> u64 {
        self.world.moment.ms()
    }

    /// The lock of a name, without the leases that have ended; `None` for another type's key.
    ///
    /// A key that expires before its leases do was given an EXPIRE by hand: that shortens them.
    pub fn open(&mut self, name: &Name) -> Option<&mut Lock> {
        if !self.drafts.contains_key(name) {
            let before = self.world.shelf.read(name);
            let mut lock = Lock::free();
            if let Slot::Lock(stored) = &before {
                lock = stored.lock.clone();
                lock.shorten(stored.expiry_ms.unwrap_or(u64::MAX));
                self.ties.uphold(&mut lock, self.world.moment.ms());
                self.lapses += lock.lapse(self.world.moment.ms()) as u64;
            }
            let draft = Draft {
                before,
                lock,
                affirmed: Vec::new(),
            };
            self.drafts.insert(name.clone(), draft);
        }
        match self.drafts.get_mut(name) {
            Some(Draft {
                before: Slot::Foreign,
                ..
            })
            | None => None,
            Some(draft) => Some(&mut draft.lock),
        }
    }

    /// Whether there was no key at a name that is opened for the first time.
    pub fn came_empty(&mut self, name: &Name) -> bool {
        let first = !self.drafts.contains_key(name);
        self.open(name);
        let empty = self
            .drafts
            .get(name)
            .is_some_and(|draft| draft.before == Slot::Empty);
        first && empty
    }

    /// Takes note of what the order made of the ties.
    pub fn follow_ties(&mut self) {
        for draft in self.drafts.values() {
            let before = match &draft.before {
                Slot::Lock(stored) => Some(&stored.lock),
                Slot::Empty | Slot::Foreign | Slot::Away => None,
            };
            self.ties
                .follow(before, &draft.lock, self.world.moment.ms());
        }
        self.ties.drop_unfollowed();
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

    /// Whether a name's lock may be at another server just now.
    pub fn is_away(&mut self, name: &Name) -> bool {
        self.open(name);
        let draft = self.drafts.get(name);
        draft.is_some_and(|draft| draft.before == Slot::Away)
    }

    /// What the order changed, and what it affirmed.
    pub fn effects(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (name, draft) in &self.drafts {
            let before = match &draft.before {
                Slot::Empty => None,
                Slot::Lock(stored) => Some(stored),
                Slot::Foreign | Slot::Away => continue,
            };
            let mut changes = effect::between(before, &draft.lock);
            for token in &draft.affirmed {
                effect::affirm(&mut changes, &draft.lock, token);
            }
            effects.extend(changes.into_iter().map(|change| Effect {
                name: name.clone(),
                change,
            }));
        }
        effects
    }
}
