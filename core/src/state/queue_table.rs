//! What is kept of each name that somebody waits for, found by the name.
//!
//! An operation asks for one and the same name again and again. So the one that was found last is compared
//! first: only another one is searched for.

use std::cell::Cell;

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use crate::branch::{likely, unlikely};
use crate::values::name::Name;

/// Values by name.
#[derive(Debug)]
pub struct QueueTable<Q> {
    queues: IndexMap<Name, Q, RandomState>,
    /// Where the last one was found. Another one may lie there by now, or none.
    last: Cell<usize>,
}

impl<Q> Default for QueueTable<Q> {
    fn default() -> Self {
        Self {
            queues: IndexMap::default(),
            last: Cell::default(),
        }
    }
}

impl<Q> QueueTable<Q> {
    /// The names, in no order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Name> {
        self.queues.keys()
    }

    /// The names from a number on and below another one. A name may get a smaller number as another one is removed,
    /// and never a greater one.
    pub fn names_between(&self, from: usize, below: usize) -> impl Iterator<Item = &Name> {
        let slice = self.queues.get_range(from..below);
        slice.into_iter().flat_map(|slice| slice.keys())
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Name, &Q)> {
        self.queues.iter()
    }

    /// The values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &Q> {
        self.queues.values()
    }

    /// The values, to change.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.queues.values_mut()
    }

    #[inline]
    fn find(&self, name: &Name) -> Option<usize> {
        let last = self.last.get();
        let found = self.queues.get_index(last);
        if likely(found.is_some_and(|(found, _)| found == name)) {
            return Some(last);
        }
        self.search(name)
    }

    #[inline(never)]
    fn search(&self, name: &Name) -> Option<usize> {
        let at = self.queues.get_index_of(name)?;
        self.last.set(at);
        Some(at)
    }

    /// Whether there is one of this name.
    pub fn contains(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// The one of this name.
    pub fn get(&self, name: &Name) -> Option<&Q> {
        let at = self.find(name)?;
        self.queues.get_index(at).map(|(_, queue)| queue)
    }

    /// The one of this name, with its number among all of them and the name as it lies here.
    pub fn get_numbered(&self, name: &Name) -> Option<(usize, &Name, &Q)> {
        let at = self.find(name)?;
        let (name, queue) = self.queues.get_index(at)?;
        Some((at, name, queue))
    }

    /// The one of this name, to change.
    pub fn get_mut(&mut self, name: &Name) -> Option<&mut Q> {
        let at = self.find(name)?;
        self.queues.get_index_mut(at).map(|(_, queue)| queue)
    }

    /// Removes the one of this name.
    pub fn remove(&mut self, name: &Name) {
        self.queues.swap_remove(name);
    }
}

impl<Q: Default> QueueTable<Q> {
    /// Makes one of this name, unless there is one.
    pub fn make(&mut self, name: &Name) {
        if unlikely(self.find(name).is_none()) {
            self.insert(name);
        }
    }

    #[inline(never)]
    fn insert(&mut self, name: &Name) {
        let (at, _) = self.queues.insert_full(name.clone(), Q::default());
        self.last.set(at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few names, so that the one found last is often asked for, and often gone.
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u8..4, 0u8..4, 1usize..9), 1..60)) {
            let (mut table, mut map) = (QueueTable::default(), std::collections::HashMap::new());
            for (kind, name, value) in steps {
                let name = Name::new(0, &[name]);
                match kind {
                    0 => {
                        table.remove(&name);
                        map.remove(&name);
                    }
                    1 => {
                        table.make(&name);
                        *map.entry(name.clone()).or_default() += value;
                        table.get_mut(&name).into_iter().for_each(|made| *made += value);
                    }
                    2 => prop_assert_eq!(table.get_mut(&name), map.get_mut(&name)),
                    _ => prop_assert_eq!(table.get(&name), map.get(&name)),
                }
                prop_assert_eq!(table.contains(&name), map.contains_key(&name));
                prop_assert_eq!(table.names().len(), map.len());
                prop_assert_eq!(table.values().sum::<usize>(), map.values().sum::<usize>());
                prop_assert!(table.names().all(|name| map.contains_key(name)));
            }
        }
    }
}
