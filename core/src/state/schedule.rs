//! When which name is to be looked at without anybody's command.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::values::name::Name;

/// Names in the order of their times, on the steady clock in ms, for whoever knows the time of each. Every step
/// costs O(log n).
#[derive(Debug, Default)]
pub struct Order(BTreeSet<(u64, Name)>);

impl Order {
    /// Moves a name from the time that it has, if any, to another one, or to none.
    pub fn replace(&mut self, name: &Name, before_ms: Option<u64>, ms: Option<u64>) {
        if before_ms == ms {
            return;
        }
        if let Some(before_ms) = before_ms {
            self.0.remove(&(before_ms, name.clone()));
        }
        self.0.extend(ms.map(|ms| (ms, name.clone())));
    }

    /// The names due by `until_ms`, the earliest first, at most `most` of them.
    pub fn due(&self, until_ms: u64, most: usize) -> Vec<Name> {
        let due = self.0.iter().take_while(|(ms, _)| *ms <= until_ms);
        due.take(most).map(|(_, name)| name.clone()).collect()
    }

    /// When the first name is due.
    pub fn next_ms(&self) -> Option<u64> {
        self.0.first().map(|(ms, _)| *ms)
    }

    /// All names with their times, the earliest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(u64, Name)> {
        self.0.iter()
    }
}

/// Names, each with one time, on the steady clock in ms. Every step costs O(log n).
///
/// Invariant: both collections tell the same.
#[derive(Debug, Default)]
pub struct Schedule {
    times: HashMap<Name, u64>,
    order: Order,
}

impl Schedule {
    /// When a name is due, if it is.
    pub fn time_of(&self, name: &Name) -> Option<u64> {
        self.times.get(name).copied()
    }

    /// Sets when a name is due, or that it isn't.
    pub fn set(&mut self, name: &Name, due_ms: Option<u64>) {
        let before_ms = match (self.times.get_mut(name), due_ms) {
            (Some(time_ms), Some(due_ms)) => Some(std::mem::replace(time_ms, due_ms)),
            (None, Some(due_ms)) => self.times.insert(name.clone(), due_ms),
            (Some(_), None) => self.times.remove(name),
            (None, None) => None,
        };
        self.order.replace(name, before_ms, due_ms);
    }

    /// The names due by `until_ms`, the earliest first, at most `most` of them.
    pub fn due(&self, until_ms: u64, most: usize) -> Vec<Name> {
        self.order.due(until_ms, most)
    }

    /// When the first name is due.
    pub fn next_ms(&self) -> Option<u64> {
        self.order.next_ms()
    }

    /// Makes every name due at `due_ms`.
    pub fn set_all(&mut self, due_ms: u64) {
        self.times.values_mut().for_each(|ms| *ms = due_ms);
        let names = self.times.keys().cloned();
        self.order = Order(names.map(|name| (due_ms, name)).collect());
    }

    /// Whether no name has one.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_tells_what_was_set_last(steps in proptest::collection::vec((0u8..6, 0u64..9, 0u8..9), 1..60)) {
            let (mut schedule, mut times) = (Schedule::default(), std::collections::BTreeMap::new());
            for (key, ms, kind) in steps {
                let name = Name::new(0, &[key]);
                match kind {
                    0 => {
                        schedule.set_all(ms);
                        times.values_mut().for_each(|time| *time = ms);
                    }
                    1 | 2 => {
                        schedule.set(&name, None);
                        times.remove(&name);
                    }
                    _ => {
                        schedule.set(&name, Some(ms));
                        times.insert(name, ms);
                    }
                }
                let mut order: Vec<(u64, Name)> = times.iter().map(|(name, ms)| (*ms, name.clone())).collect();
                order.sort();
                prop_assert_eq!(schedule.is_empty(), order.is_empty());
                prop_assert_eq!(schedule.next_ms(), order.first().map(|(ms, _)| *ms));
                prop_assert!(order.iter().all(|(ms, name)| schedule.time_of(name) == Some(*ms)));
                let due = order.iter().filter(|(due_ms, _)| *due_ms <= ms).map(|(_, name)| name);
                prop_assert!(schedule.due(ms, 3).iter().eq(due.take(3)));
            }
        }
    }
}
