//! A table of queues by name.

// perf: an operation looks up one name again and again. So the queue that was found last is
// compared before the table is searched.

use std::cell::Cell;

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use crate::hints::{likely, unlikely};
use crate::values::name::Name;

/// Queues by name.
#[derive(Debug)]
pub struct QueueTable<Q> {
    queues: IndexMap<Name, Q, RandomState>,
    /// The index of the queue that was found last. Another queue may have that index by now, or
    /// none.
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
    /// Returns the names, in no order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Name> {
        self.queues.keys()
    }

    /// Returns the names with a number from `from` up to, but not including, `below`. When a name
    /// is removed, another name may get a smaller number, never a greater one.
    pub fn names_between(&self, from: usize, below: usize) -> impl Iterator<Item = &Name> {
        let slice = self.queues.get_range(from..below);
        slice.into_iter().flat_map(|slice| slice.keys())
    }

    /// Returns all names and queues, in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Name, &Q)> {
        self.queues.iter()
    }

    /// Returns all names and queues for a change, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Name, &mut Q)> {
        self.queues.iter_mut()
    }

    /// Returns the queues, in no order.
    pub fn values(&self) -> impl Iterator<Item = &Q> {
        self.queues.values()
    }

    /// Returns the queues for a change, in no order.
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

    /// Returns true if a name has a queue.
    pub fn contains(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// Returns the queue of a name.
    pub fn get(&self, name: &Name) -> Option<&Q> {
        let at = self.find(name)?;
        self.queues.get_index(at).map(|(_, queue)| queue)
    }

    /// Returns the queue of a name with its number, and the name as it is stored here.
    pub fn get_numbered(&self, name: &Name) -> Option<(usize, &Name, &Q)> {
        let at = self.find(name)?;
        let (name, queue) = self.queues.get_index(at)?;
        Some((at, name, queue))
    }

    /// Returns the queue of a name for a change.
    pub fn get_mut(&mut self, name: &Name) -> Option<&mut Q> {
        let at = self.find(name)?;
        self.queues.get_index_mut(at).map(|(_, queue)| queue)
    }

    /// Removes the queue of a name.
    pub fn remove(&mut self, name: &Name) {
        self.queues.swap_remove(name);
    }
}

impl<Q: Default> QueueTable<Q> {
    /// Makes a queue for a name, unless the name has one.
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
        /// Few names, so that the queue found last is often looked up and often gone.
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
