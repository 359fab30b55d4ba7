//! The schedule of names to settle without a client's command.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::values::name::Name;

/// The due time of a name, and the time by which an [`Order`] lists it, on the steady clock in ms.
///
/// Invariant: the name is listed no later than it is due.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    due_ms: u64,
    listed_ms: u64,
}

/// Names in the order of their times, on the steady clock in ms. The caller keeps the [`Time`] of
/// each name.
// perf: a postponed time changes nothing here until the earlier time comes. A lock that is handed
// over thousands of times a second has a later end each time. Every other operation costs O(log n).
#[derive(Debug, Default)]
pub struct Order(BTreeSet<(u64, Name)>);

impl Order {
    /// Lists a name that is not listed yet. Returns its time.
    pub fn insert(&mut self, name: &Name, due_ms: u64) -> Time {
        self.0.insert((due_ms, name.clone()));
        let listed_ms = due_ms;
        Time { due_ms, listed_ms }
    }

    /// Sets the time of a listed name, at `now_ms`.
    pub fn set(&mut self, name: &Name, time: &mut Time, due_ms: u64, now_ms: u64) {
        time.due_ms = due_ms;
        let is_found_later = now_ms < time.listed_ms && time.listed_ms <= due_ms;
        if !is_found_later {
            self.relist(name, time);
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &Name, time: Time) {
        self.0.remove(&(time.listed_ms, name.clone()));
    }

    /// Returns the names that are listed by `until_ms`, the earliest first, at most `most`. Each of
    /// them is due by then or [postponed](Order::is_put_off).
    pub fn listed(&self, until_ms: u64, most: usize) -> Vec<Name> {
        let listed = self.0.iter().take_while(|(ms, _)| *ms <= until_ms);
        listed.take(most).map(|(_, name)| name.clone()).collect()
    }

    /// Returns true if a name is due only after `until_ms`. It is then listed by its due time.
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

    /// Returns the next time to look for a name that is due. No name is due earlier.
    pub fn next_ms(&self) -> Option<u64> {
        self.0.first().map(|(ms, _)| *ms)
    }

    /// Returns the number of listed names.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns true if a name is listed by this time. For the checks of invariants.
    pub fn has(&self, name: &Name, time: Time) -> bool {
        time.listed_ms <= time.due_ms && self.0.contains(&(time.listed_ms, name.clone()))
    }
}

/// Names with one time each, on the steady clock in ms. An operation costs O(log n), or O(1) if it
/// postpones a time.
///
/// Invariant: `order` lists the names that have a time.
#[derive(Debug, Default)]
pub struct Schedule {
    times: HashMap<Name, Time>,
    order: Order,
}

impl Schedule {
    /// Returns when a name is due, if it is scheduled.
    pub fn time_of(&self, name: &Name) -> Option<u64> {
        self.times.get(name).map(|time| time.due_ms)
    }

    /// Sets, at `now_ms`, the time at which a name is due.
    pub fn set(&mut self, name: &Name, due_ms: u64, now_ms: u64) {
        if let Some(time) = self.times.get_mut(name) {
            self.order.set(name, time, due_ms, now_ms);
        } else {
            let time = self.order.insert(name, due_ms);
            self.times.insert(name.clone(), time);
        }
    }

    /// Removes the time of a name.
    pub fn remove(&mut self, name: &Name) {
        if let Some(time) = self.times.remove(name) {
            self.order.remove(name, time);
        }
    }

    /// Returns the names due by `until_ms`. Looks at `most` names at most.
    pub fn due(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        let mut due = self.order.listed(until_ms, most);
        due.retain(|name| {
            let time = self.times.get_mut(name);
            time.is_some_and(|time| !self.order.is_put_off(name, time, until_ms))
        });
        due
    }

    /// Returns the next time to look for a name that is due. No name is due earlier.
    pub fn next_ms(&self) -> Option<u64> {
        self.order.next_ms()
    }

    /// Sets the time of every scheduled name to `due_ms`.
    pub fn set_all(&mut self, due_ms: u64) {
        self.order = Order::default();
        for (name, time) in &mut self.times {
            *time = self.order.insert(name, due_ms);
        }
    }

    /// Removes the times of the names that `is_gone` returns true for.
    pub fn forget(&mut self, is_gone: impl Fn(&Name) -> bool) {
        let order = &mut self.order;
        self.times.retain(|name, time| {
            let is_kept = !is_gone(name);
            if !is_kept {
                order.remove(name, *time);
            }
            is_kept
        });
    }

    /// Gives the times of the names in two databases to the names with the same keys in the other
    /// one.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        let is_here = |name: &Name| name.db == one || name.db == other;
        let here = self.times.iter().filter(|(name, _)| is_here(name));
        let moved: Vec<(Name, u64)> = here.map(|(name, it)| (name.clone(), it.due_ms)).collect();
        self.forget(is_here);
        for (mut name, due_ms) in moved {
            name.db = if name.db == one { other } else { one };
            let time = self.order.insert(&name, due_ms);
            self.times.insert(name, time);
        }
    }

    /// Returns true if no name has a time.
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
                // A name that was postponed beyond that time is listed by its new time, so it is
                // found only once.
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

    /// Schedules `a` at 10 in databases 0 and 1, and `b` at 20 in database 2.
    fn scheduled() -> Schedule {
        let mut schedule = Schedule::default();
        for (db, key, ms) in [(0, b"a", 10), (1, b"a", 11), (2, b"b", 20)] {
            schedule.set(&Name::new(db, key), ms, 0);
        }
        schedule
    }

    fn times(schedule: &mut Schedule) -> Vec<(i32, u64)> {
        let due = schedule.due(99, 99);
        let times = due
            .iter()
            .map(|name| (name.db, schedule.time_of(name).unwrap()));
        times.collect()
    }

    #[test]
    fn swapped_databases_exchange_their_times() {
        for (one, other, expected) in [
            (0, 1, [(1, 10), (0, 11), (2, 20)]),
            (2, 0, [(2, 10), (1, 11), (0, 20)]),
            (3, 2, [(0, 10), (1, 11), (3, 20)]),
        ] {
            let mut schedule = scheduled();
            schedule.swap_databases(one, other);
            assert_eq!(times(&mut schedule), expected, "{one} and {other}");
            assert_eq!(schedule.order.count(), 3);
        }
    }

    #[test]
    fn names_that_are_gone_are_forgotten() {
        let mut schedule = scheduled();
        schedule.forget(|name| name.db == 1);
        assert_eq!(times(&mut schedule), [(0, 10), (2, 20)]);
        assert_eq!(schedule.order.count(), 2);
    }

    /// A time that is postponed is found by its old time, unless that has come already.
    #[test]
    fn an_order_knows_by_which_time_it_lists_a_name() {
        let name = Name::new(0, b"k");
        for (due_ms, now_ms, listed_ms) in [(30, 5, 10), (30, 10, 30), (4, 5, 4), (10, 5, 10)] {
            let mut order = Order::default();
            let mut time = order.insert(&name, 10);
            assert!(order.has(&name, time));
            order.set(&name, &mut time, due_ms, now_ms);
            assert_eq!(order.next_ms(), Some(listed_ms), "{due_ms} at {now_ms}");
            assert!(order.has(&name, time));
            let wrong = Time {
                due_ms: 1,
                listed_ms,
            };
            assert_eq!(order.has(&name, wrong), listed_ms <= 1);
            assert!(!order.has(
                &name,
                Time {
                    due_ms: 99,
                    listed_ms: 99
                }
            ));
        }
    }
}
