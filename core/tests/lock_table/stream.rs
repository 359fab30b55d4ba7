//! The stream that a server writes for its replicas and files, and the copy of its keys made of it.

use std::collections::BTreeMap;

use redis_lock_core::effect::{self, Change, Parsed, Word};
use redis_lock_core::values::codec;
use redis_lock_core::values::holder::Holder;
use redis_lock_core::values::lock::{Lock, Stored};
use redis_lock_core::values::name::Name;

/// One entry of the stream.
#[derive(Clone, Debug)]
pub enum Written {
    /// An effect.
    Changed(Name, Change),
    /// The server's own commands.
    Deleted(Name),
    Renamed(Name, Name),
    Restored(Name, Lock),
    Expires(Name, Option<u64>),
    Flushed,
}

/// The keys of a replica or a file, and the greatest fence that it has seen.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    pub locks: BTreeMap<Name, Stored>,
    pub last_fence: u64,
}

impl Replica {
    /// Returns the lock of a key.
    pub fn lock(&self, name: &Name) -> Lock {
        let stored = self.locks.get(name);
        stored.map(|it| it.lock.clone()).unwrap_or_default()
    }

    /// Returns the copy that a server loads from a file of this one.
    pub fn as_loaded(&self) -> Self {
        let load = |stored: &Stored| Stored {
            lock: codec::decode(&codec::encode(&stored.lock)).expect("a file of our own"),
            expiry_ms: stored.expiry_ms,
        };
        let locks = self.locks.iter();
        Self {
            locks: locks.map(|(name, it)| (name.clone(), load(it))).collect(),
            last_fence: self.last_fence,
        }
    }

    /// Applies an entry that was read from the words of the stream.
    pub fn read(&mut self, written: &Written) {
        match written {
            Written::Changed(name, change) => {
                let change = self.through_words(name, change);
                self.change(name, &change);
            }
            written => self.apply(written),
        }
    }

    /// Applies an entry.
    pub fn apply(&mut self, written: &Written) {
        match written {
            Written::Changed(name, change) => self.change(name, change),
            Written::Deleted(name) => drop(self.locks.remove(name)),
            Written::Renamed(from, to) => match self.locks.remove(from) {
                Some(stored) => drop(self.locks.insert(to.clone(), stored)),
                None => drop(self.locks.remove(to)),
            },
            Written::Restored(name, lock) => {
                self.last_fence = self.last_fence.max(lock.highest_fence());
                self.store(name, lock.clone());
            }
            Written::Expires(name, expiry_ms) => {
                if let Some(stored) = self.locks.get_mut(name) {
                    stored.expiry_ms = *expiry_ms;
                }
            }
            Written::Flushed => self.locks.clear(),
        }
    }

    fn change(&mut self, name: &Name, change: &Change) {
        if let Change::Grant { holder, .. } | Change::Raise { holder, .. } = change {
            self.last_fence = self.last_fence.max(holder.fence);
        }
        let mut lock = self
            .locks
            .remove(name)
            .map(|it| it.lock)
            .unwrap_or_default();
        effect::apply(&mut lock, change);
        if !lock.is_free() {
            self.store(name, lock);
        }
    }

    fn store(&mut self, name: &Name, lock: Lock) {
        let expiry_ms = lock.latest_deadline_ms();
        self.locks.insert(name.clone(), Stored { lock, expiry_ms });
    }

    /// Returns a change as a replica reads it from the words of LOCK.APPLY or DEL.
    fn through_words(&self, name: &Name, change: &Change) -> Change {
        let Some(words) = effect::words(change) else {
            return Change::Delete;
        };
        let lock = self.lock(name);
        let words: Vec<&[u8]> = words.iter().map(Word::as_slice).collect();
        match effect::parse(&words).expect("words of our own") {
            Parsed::Change(change) => effect::as_decided(change, &lock),
            Parsed::Renew { deadline_ms, .. } => {
                let own = lock.holders().only().expect("an exclusive holder").clone();
                let holder = Holder { deadline_ms, ..own };
                Change::Renew { holder }
            }
        }
    }
}
