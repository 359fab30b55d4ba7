//! When which name is to be looked at without anybody's command.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::values::name::Name;

/// Names, each with one time, on the steady clock in ms. Every step costs O(log n).
///
/// Invariant: both collections tell the same.
#[derive(Debug, Default)]
pub struct Schedule {
    times: HashMap<Name, u64>,
    order: BTreeSet<(u64, Name)>,
}

impl Schedule {
    /// When a name is due, if it is.
    pub fn time_of(&self, name: &Name) -> Option<u64> {
        self.times.get(name).copied()
    }

    /// Sets when a name is due, or that it isn't.
    pub fn set(&mut self, name: &Name, due_ms: Option<u64>) {
        let before_ms = self.time_of(name);
        if before_ms == due_ms {
            return;
        }
        match due_ms {
            Some(due_ms) => {
                self.order.insert((due_ms, name.clone()));
                self.times.insert(name.clone(), due_ms);
            }
            None => {
                self.times.remove(name);
            }
        }
        if let Some(before_ms) = before_ms {
            self.order.remove(&(before_ms, name.clone()));
        }
    }

    /// The names due by `until_ms`, the earliest first, at most `most` of them.
    pub fn due(&self, until_ms: u64, most: usize) -> Vec<Name> {
        let due = self.order.iter().take_while(|(ms, _)| *ms <= until_ms);
        due.take(most).map(|(_, name)| name.clone()).collect()
    }

    /// When the first name is due.
    pub fn next_ms(&self) -> Option<u64> {
        self.order.first().map(|(ms, _)| *ms)
    }

    /// Makes every name due at `due_ms`.
    pub fn set_all(&mut self, due_ms: u64) {
        let names = std::mem::take(&mut self.order);
        for (_, name) in names {
            self.times.insert(name.clone(), due_ms);
            self.order.insert((due_ms, name));
        }
    }

    /// How many names have a time.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether no name has one.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Whether both collections tell the same, for tests.
    pub fn is_sound(&self) -> bool {
        let alike = |(ms, name): &(u64, Name)| self.times.get(name) == Some(ms);
        self.times.len() == self.order.len() && self.order.iter().all(alike)
    }
}
