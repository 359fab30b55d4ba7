//! The names where waiting happens, for LOCK.HOT.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use foldhash::{HashMap, HashMapExt};

use super::lock_table::LockTable;
use crate::budget::MOST_NAMES_CHECKED;
use crate::state::contention::{is_counted, Counts};
use crate::state::queue::KnownQueue;
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
// perf: small, because there are as many as names with a queue.
#[derive(PartialEq, Eq)]
struct Candidate<'t> {
    name: &'t Name,
    /// The counts without the waits that go on.
    counts: &'t Counts,
    waiters: usize,
    /// The length of the waits that go on, and that of the longest of them.
    waiting_ms: (u64, u64),
}

impl Candidate<'_> {
    const fn waited_ms(&self) -> u64 {
        let (waiting_ms, _) = self.waiting_ms;
        self.counts.waited_ms.saturating_add(waiting_ms)
    }

    fn hot_name(&self) -> HotName {
        let (_, longest_ms) = self.waiting_ms;
        HotName {
            name: self.name.clone(),
            counts: Counts {
                waited_ms: self.waited_ms(),
                longest_wait_ms: self.counts.longest_wait_ms.max(longest_ms),
                ..*self.counts
            },
            waiters: self.waiters,
        }
    }
}

impl Ord for Candidate<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let heat = |it: &Self| (it.waited_ms(), it.counts.waits, it.counts.refused);
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
    /// hottest first. Asks about the [`MOST_NAMES_CHECKED`] hottest names at most, and only about
    /// names that would be returned. `now_ms` is on the steady clock.
    // perf: looks at every waiter once.
    pub fn hottest(
        &self,
        most: usize,
        now_ms: u64,
        mut is_shown: impl FnMut(&Name) -> bool,
    ) -> Vec<HotName> {
        let counted = self.counted(now_ms);
        let mut candidates = self.candidates(&counted, now_ms);
        if candidates.len() > MOST_NAMES_CHECKED {
            candidates.select_nth_unstable_by(MOST_NAMES_CHECKED, |one, other| other.cmp(one));
            candidates.truncate(MOST_NAMES_CHECKED);
        }
        let mut candidates = BinaryHeap::from(candidates);
        let hottest = std::iter::from_fn(|| candidates.pop());
        let shown = hottest.filter(|it| is_shown(it.name)).take(most);
        shown.map(|it| it.hot_name()).collect()
    }

    /// Returns the counts of the names that have any.
    fn counted(&self, now_ms: u64) -> HashMap<&Name, Counts> {
        let mut counted = HashMap::<&Name, Counts>::new();
        for (name, counts) in self.wait_queues.contention.counts(now_ms) {
            counted.entry(name).or_default().add(counts);
        }
        counted
    }

    /// Returns the names that have counts or waiters.
    fn candidates<'t>(
        &'t self,
        counted: &'t HashMap<&'t Name, Counts>,
        now_ms: u64,
    ) -> Vec<Candidate<'t>> {
        const NONE: &Counts = &Counts::NONE;
        let queues = self.queues();
        let mut candidates = Vec::with_capacity(queues.names().len() + counted.len());
        let known = |name| queues.known(name).map(KnownQueue::number);
        let mut with_queue: Vec<(usize, &Counts)> = counted
            .iter()
            .filter_map(|(name, counts)| Some((known(name)?, counts)))
            .collect();
        with_queue.sort_unstable_by_key(|(number, _)| *number);
        let mut with_queue = with_queue.into_iter().peekable();
        for (number, (name, queue)) in queues.by_name().enumerate() {
            let counts = with_queue.next_if(|(known, _)| *known == number);
            let (mut waiting_ms, mut longest_ms, mut waiters) = (0_u64, 0, 0);
            for waiter in queue {
                let ms = now_ms.saturating_sub(waiter.since_ms);
                waiting_ms = waiting_ms.saturating_add(ms);
                longest_ms = ms.max(longest_ms);
                waiters += 1;
            }
            let counts = counts.map(|(_, counts)| counts);
            if is_counted(name) && (waiters > 0 || counts.is_some()) {
                candidates.push(Candidate {
                    name,
                    counts: counts.unwrap_or(NONE),
                    waiters,
                    waiting_ms: (waiting_ms, longest_ms),
                });
            }
        }
        let rest = counted.iter().filter(|(name, _)| !queues.has_queue(name));
        candidates.extend(rest.map(|(name, counts)| Candidate {
            name,
            counts,
            waiters: 0,
            waiting_ms: (0, 0),
        }));
        candidates
    }
}
