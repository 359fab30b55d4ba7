//! A set of names that follows SWAPDB.

use foldhash::{HashMap, HashSet};
use redis_lock_core::values::name::Name;

/// Names, separate for each database.
///
/// Invariant: no listed database is without a key.
#[derive(Debug, Default)]
pub struct NameSet {
    databases: HashMap<i32, HashSet<Box<[u8]>>>,
    len: usize,
}

impl NameSet {
    /// Returns the number of names.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no name.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the set contains a name.
    pub fn contains(&self, name: &Name) -> bool {
        let keys = self.databases.get(&name.db);
        keys.is_some_and(|keys| keys.contains(name.key()))
    }

    /// Adds a name.
    pub fn insert(&mut self, name: &Name) {
        let keys = self.databases.entry(name.db).or_default();
        self.len += usize::from(keys.insert(name.key().into()));
    }

    /// Removes a name. Returns true if the set contained it.
    pub fn remove(&mut self, name: &Name) -> bool {
        let Some(keys) = self.databases.get_mut(&name.db) else {
            return false;
        };
        let was_there = keys.remove(name.key());
        self.len -= usize::from(was_there);
        if keys.is_empty() {
            self.databases.remove(&name.db);
        }
        was_there
    }

    /// Removes at most `most` names. Returns them.
    pub fn take(&mut self, most: usize) -> Vec<Name> {
        let names = self.databases.iter().flat_map(|(database, keys)| {
            let keys = keys.iter();
            keys.map(|key| Name::new(*database, key))
        });
        let names: Vec<Name> = names.take(most).collect();
        for name in &names {
            self.remove(name);
        }
        names
    }

    /// Moves all names of another set to this one.
    // perf: costs nothing for each name of a database that is new to this set.
    pub fn append(&mut self, other: &mut Self) {
        for (database, mut keys) in std::mem::take(other).databases {
            let own = self.databases.entry(database).or_default();
            if own.len() < keys.len() {
                std::mem::swap(own, &mut keys);
            }
            own.extend(keys);
        }
        self.len = self.databases.values().map(HashSet::len).sum();
    }

    /// Swaps two databases.
    // perf: costs the same for any number of names.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        let swapped = [
            (self.databases.remove(&one), other),
            (self.databases.remove(&other), one),
        ];
        for (keys, database) in swapped {
            if let Some(keys) = keys {
                self.databases.insert(database, keys);
            }
        }
    }
}

impl Extend<Name> for NameSet {
    fn extend<T: IntoIterator<Item = Name>>(&mut self, names: T) {
        names.into_iter().for_each(|name| self.insert(&name));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(numbers: &[(i32, u8)]) -> impl Iterator<Item = Name> + '_ {
        let names = numbers.iter();
        names.map(|(database, key)| Name::new(*database, &[*key]))
    }

    fn all(mut set: NameSet) -> BTreeSet<Name> {
        let len = set.len();
        let names = set.take(usize::MAX);
        assert_eq!((names.len(), set.len(), set.is_empty()), (len, 0, true));
        names.into_iter().collect()
    }

    #[test]
    fn each_name_is_there_once() {
        let mut set = NameSet::default();
        set.extend(names(&[(0, 1), (0, 2), (1, 1), (0, 1)]));
        assert_eq!(set.len(), 3);
        let name = Name::new(0, &[2]);
        assert!(set.contains(&name) && set.remove(&name) && !set.contains(&name));
        assert!(!set.remove(&name) && !set.remove(&Name::new(7, &[2])));
        assert_eq!(set.take(1).len(), 1);
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn names_follow_their_databases() {
        let mut set = NameSet::default();
        set.extend(names(&[(0, 1), (0, 2), (1, 3)]));
        set.swap_databases(0, 1);
        set.swap_databases(1, 5);
        set.swap_databases(0, 0);
        assert_eq!(all(set), names(&[(5, 1), (5, 2), (0, 3)]).collect());
    }

    #[test]
    fn one_set_takes_up_another() {
        let (mut set, mut other) = (NameSet::default(), NameSet::default());
        set.extend(names(&[(0, 1), (1, 1), (1, 2)]));
        other.extend(names(&[(0, 1), (0, 2), (1, 3), (2, 1)]));
        set.append(&mut other);
        assert_eq!((set.len(), other.len()), (6, 0));
        let both = [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (2, 1)];
        assert_eq!(all(set), names(&both).collect());
    }
}
