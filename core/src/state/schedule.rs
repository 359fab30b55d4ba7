//! When which name is to be looked at without anybody's command.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::values::name::Name;

/// When a name is due, and by when it is listed in the order for that, on the steady clock in ms.
///
/// Invariant: it is listed no later than it is due.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    due_ms: u64,
    listed_ms: u64,
}

/// Names in the order of their times, on the steady clock in ms. Whoever has the names keeps the time of each.
///
/// A time that is put off before it has come changes nothing here until then: a lock that is handed from one to the
/// next thousands of times a second has a lease that ends later each time. Every other step costs O(log n).
#[derive(Debug, Default)]
pub struct Order(BTreeSet<(u64, Name)>);

impl Order {
    /// Lists a name that isn't.
    pub fn insert(&mut self, name: &Name, due_ms: u64) -> Time {
        self.0.insert((due_ms, name.clone()));
        let listed_ms = due_ms;
        Time { due_ms, listed_ms }
    }

    /// Gives a name another time, at `now_ms`.
    pub fn set(&mut self, name: &Name, time: &mut Time, due_ms: u64, now_ms: u64) {
        time.due_ms = due_ms;
        let is_found_later = now_ms < time.listed_ms && time.listed_ms <= due_ms;
        if !is_found_later {
            self.relist(name, time);
        }
    }

    /// Takes a name out.
    pub fn remove(&mut self, name: &Name, time: Time) {
        self.0.remove(&(time.listed_ms, name.clone()));
    }

    /// The names that are listed by `until_ms`, the earliest first, at most `most` of them. Each of them is due by
    /// then or [is put off](Order::is_put_off).
    pub fn listed(&self, until_ms: u64, most: usize) -> Vec<Name> {
        let listed = self.0.iter().take_while(|(ms, _)| *ms <= until_ms);
        listed.take(most).map(|(_, name)| name.clone()).collect()
    }

    /// Whether a name is due after `until_ms` only; from then on it is listed by its time.
    pub fn is_put_off(&mut self, name: &Name, time: &mut Time, until_ms: u64) -> bool {
        let is_put_off = time.due_ms > until_ms;
        if is_put_off {
            self.relist(name, time);
        }
        is_put_off
    }

    fn relist(&mut self, name: &Name, time: &mut Time) {
        self.remove(name, *time);
        *time = self.insert(name, time.due_ms);
    }

    /// When to look which name is due first: no later than that is.
    pub fn next_ms(&self) -> Option<u64> {
        self.0.first().map(|(ms, _)| *ms)
    }

    /// How many names are listed.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a name is listed as its time says.
    pub fn has(&self, name: &Name, time: Time) -> bool {
        time.listed_ms <= time.due_ms && self.0.contains(&(time.listed_ms, name.clone()))
    }
}

/// Names, each with one time, on the steady clock in ms. Every step costs O(log n), and O(1) where a time is put off.
///
/// Invariant: `order` lists the names that have a time.
#[derive(Debug, Default)]
pub struct Schedule {
    times: HashMap<Name, Time>,
    order: Order,
}

impl Schedule {
    /// When a name is due, if it is.
    pub fn time_of(&self, name: &Name) -> Option<u64> {
        self.times.get(name).map(|time| time.due_ms)
    }

    /// Sets, at `now_ms`, when a name is due.
    pub fn set(&mut self, name: &Name, due_ms: u64, now_ms: u64) {
        if let Some(time) = self.times.get_mut(name) {
            self.order.set(name, time, due_ms, now_ms);
        } else {
            let time = self.order.insert(name, due_ms);
            self.times.insert(name.clone(), time);
        }
    }

    /// A name isn't due at any time.
    pub fn remove(&mut self, name: &Name) {
        if let Some(time) = self.times.remove(name) {
            self.order.remove(name, time);
        }
    }

    /// The names due by `until_ms`; at most `most` names are looked at.
    pub fn due(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        let mut due = self.order.listed(until_ms, most);
        due.retain(|name| {
            let time = self.times.get_mut(name);
            time.is_some_and(|time| !self.order.is_put_off(name, time, until_ms))
        });
        due
    }

    /// When to look which name is due first: no later than that is.
    pub fn next_ms(&self) -> Option<u64> {
        self.order.next_ms()
    }

    /// Makes every name due at `due_ms`.
    pub fn set_all(&mut self, due_ms: u64) {
        self.order = Order::default();
        for (name, time) in &mut self.times {
            *time = self.order.insert(name, due_ms);
        }
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
        fn it_tells_what_was_set_last(steps in proptest::collection::vec((0u8..6, 0u64..9, 0u8..9, 0u64..9), 1..60)) {
            let (mut schedule, mut times) = (Schedule::default(), std::collections::BTreeMap::new());
            for (key, ms, kind, now_ms) in steps {
                let name = Name::new(0, &[key]);
                match kind {
                    0 => {
                        schedule.set_all(ms);
                        times.values_mut().for_each(|time| *time = ms);
                    }
                    1 | 2 => {
                        schedule.remove(&name);
                        times.remove(&name);
                    }
                    _ => {
                        schedule.set(&name, ms, now_ms);
                        times.insert(name, ms);
                    }
                }
                let mut order: Vec<(u64, Name)> = times.iter().map(|(name, ms)| (*ms, name.clone())).collect();
                order.sort();
                prop_assert_eq!(schedule.is_empty(), order.is_empty());
                prop_assert!(order.iter().all(|(ms, name)| schedule.time_of(name) == Some(*ms)));
                prop_assert_eq!(schedule.order.count(), order.len());
                prop_assert!(schedule.times.iter().all(|(name, time)| schedule.order.has(name, *time)));
                if kind > 5 {
                    continue;
                }
                let due = order.iter().filter(|(due_ms, _)| *due_ms <= ms).map(|(_, name)| name.clone());
                let due: std::collections::BTreeSet<Name> = due.collect();
                let found = schedule.due(ms, 99);
                prop_assert_eq!(found.len(), due.len());
                prop_assert!(found.iter().all(|name| due.contains(name)));
                // What was put off until after then is listed so: it is found once only.
                let first_ms = order.first().map(|(ms, _)| *ms);
                let is_first = |next_ms: u64| first_ms.is_some_and(|first_ms| next_ms <= first_ms);
                prop_assert_eq!(schedule.next_ms().is_some(), first_ms.is_some());
                prop_assert!(schedule.next_ms().is_none_or(|next_ms| is_first(next_ms) && (next_ms > ms || !due.is_empty())));
            }
        }

        #[test]
        fn no_more_names_are_looked_at_than_was_said(times in proptest::collection::vec((0u64..9, 0u64..9), 1..20), most in 0usize..9) {
            let mut schedule = Schedule::default();
            for (key, (ms, later_ms)) in times.iter().enumerate() {
                let name = Name::new(0, &key.to_le_bytes());
                schedule.set(&name, *ms, 0);
                schedule.set(&name, ms + later_ms, 0);
            }
            let is_due = |(ms, later_ms): &&(u64, u64)| ms + later_ms <= 8;
            let due = times.iter().filter(is_due).count();
            let mut found = 0;
            while schedule.next_ms().is_some_and(|ms| ms <= 8) {
                let looked_at = schedule.order.listed(8, most.max(1)).len();
                let names = schedule.due(8, most.max(1));
                prop_assert!(names.len() <= looked_at && looked_at <= most.max(1));
                names.iter().for_each(|name| schedule.remove(name));
                found += names.len();
            }
            prop_assert_eq!(found, due);
        }
    }
}
