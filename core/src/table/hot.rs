//! The names where waiting happens, for LOCK.HOT.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use foldhash::{HashMap, HashMapExt};

use super::lock_table::LockTable;
use crate::state::contention::{is_counted, Counts};
use crate::values::name::Name;

/// The contention of a name in this minute and the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotName {
    /// The name.
    pub name: Name,
    /// The counts. Their waits include those that go on now.
    pub counts: Counts,
    /// The number of waiters now.
    pub waiters: usize,
}

/// A name that may be among the hottest. The hottest one is the greatest.
#[derive(PartialEq, Eq)]
struct Candidate<'t> {
    name: &'t Name,
    counts: Counts,
    waiters: usize,
}

impl Ord for Candidate<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let heat = |it: &Self| (it.counts.waited_ms, it.counts.waits, it.counts.refused);
        let hotter = heat(self).cmp(&heat(other));
        hotter.then_with(|| {
            let by_key = other.name.key().cmp(self.name.key());
            by_key.then(other.name.db.cmp(&self.name.db))
        })
    }
}

impl PartialOrd for Candidate<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl LockTable {
    /// Returns the hottest names among those that `is_shown` returns true for, at most `most`, the
    /// hottest first. `now_ms` is on the steady clock.
    // perf: looks at every waiter once, and asks `is_shown` only for names that would be returned.
    pub fn hottest(
        &self,
        most: usize,
        now_ms: u64,
        is_shown: impl Fn(&Name) -> bool,
    ) -> Vec<HotName> {
        let mut candidates = self.candidates(now_ms);
        let hottest = std::iter::from_fn(|| candidates.pop());
        let hottest = hottest.filter(|it| is_shown(it.name)).take(most);
        let named = hottest.map(|it| HotName {
            name: it.name.clone(),
            counts: it.counts,
            waiters: it.waiters,
        });
        named.collect()
    }

    /// Returns the names that have counts or waiters.
    fn candidates(&self, now_ms: u64) -> BinaryHeap<Candidate<'_>> {
        let mut counted = HashMap::<&Name, Counts>::new();
        for (name, counts) in self.wait_queues.contention.counts(now_ms) {
            counted.entry(name).or_default().add(counts);
        }
        let mut names = Vec::new();
        let queues = self.wait_queues.queues.by_name();
        for (name, queue) in queues.filter(|(name, _)| is_counted(name)) {
            let (mut counts, mut waiters) = (counted.get(name).copied().unwrap_or_default(), 0);
            for waiter in queue {
                counts.add_wait(now_ms.saturating_sub(waiter.since_ms));
                waiters += 1;
            }
            if waiters > 0 {
                counted.remove(name);
                names.push(Candidate {
                    name,
                    counts,
                    waiters,
                });
            }
        }
        let rest = counted.into_iter().map(|(name, counts)| Candidate {
            name,
            counts,
            waiters: 0,
        });
        names.extend(rest);
        names.into()
    }
}
