//! Contention: for each name, the waits, refusals and ends of holds in this minute and the one
//! before.
//!
//! 1. A minute is one of the steady clock. Older minutes are forgotten.
//! 2. A minute counts [`MOST_NAMES`] names at most. A new name replaces one that has no waiter, or
//!    any if all have waiters: the one with the least waited time, then the fewest refusals, then
//!    the one that was counted first. Waits that go on add to the waited time.
//! 3. A wait is counted in the minute in which it began. Its length is added to the minute in which
//!    it ended.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::BinaryHeap;

use foldhash::HashMap;

use crate::budget::MOST_WAITERS_RANKED;
use crate::state::queue::Queues;
use crate::values::name::{Name, Names};

/// The most names that a minute counts.
pub const MOST_NAMES: usize = 256;

/// The longest key that is counted, in bytes. Longer ones would keep their memory for two minutes.
pub const MOST_KEY_BYTES: usize = 1024;

const MINUTE_MS: u64 = 60_000;

/// The counts of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waits that began. A wait that a newer one of its token continues began once.
    pub waits: u64,
    /// Acquisitions refused because the lock was not free.
    pub refused: u64,
    /// The length of the waits that ended, in ms.
    pub waited_ms: u64,
    /// The length of the longest of these waits, in ms.
    pub longest_wait_ms: u64,
    /// Holders that went while a waiter waited.
    pub grants: u64,
    /// The time for which these holders had held the lock, in ms.
    pub held_ms: u64,
}

impl Counts {
    /// The counts of a name without contention.
    pub const NONE: Self = Self {
        waits: 0,
        refused: 0,
        waited_ms: 0,
        longest_wait_ms: 0,
        grants: 0,
        held_ms: 0,
    };

    /// Adds the counts of another span of time.
    pub fn add(&mut self, other: &Self) {
        self.waits += other.waits;
        self.refused += other.refused;
        self.grants += other.grants;
        self.held_ms = self.held_ms.saturating_add(other.held_ms);
        self.waited_ms = self.waited_ms.saturating_add(other.waited_ms);
        self.longest_wait_ms = self.longest_wait_ms.max(other.longest_wait_ms);
    }

    /// Adds a wait of this length.
    pub fn add_wait(&mut self, waited_ms: u64) {
        self.waited_ms = self.waited_ms.saturating_add(waited_ms);
        self.longest_wait_ms = self.longest_wait_ms.max(waited_ms);
    }
}

/// The counts of this minute and of the one before.
#[derive(Debug, Default)]
pub struct Contention {
    this: Minute,
    before: Minute,
}

impl Contention {
    /// Counts the beginning of a wait for these names.
    pub fn begin_wait(&mut self, names: &Names, now_ms: u64, queues: &Queues) {
        let minute = self.minute(now_ms);
        for name in names {
            minute.count(name, now_ms, queues, |counts| counts.waits += 1);
        }
    }

    /// Counts the length of a wait for these names that has ended.
    pub fn end_wait(&mut self, names: &Names, since_ms: u64, now_ms: u64, queues: &Queues) {
        let waited_ms = now_ms.saturating_sub(since_ms);
        if waited_ms == 0 {
            return;
        }
        let minute = self.minute(now_ms);
        for name in names {
            minute.count(name, now_ms, queues, |counts| counts.add_wait(waited_ms));
        }
    }

    /// Takes back the length of a wait that ended at `ended_ms`, because the wait goes on.
    pub fn resume_wait(&mut self, names: &Names, since_ms: u64, ended_ms: u64) {
        let waited_ms = ended_ms.saturating_sub(since_ms);
        let number = ended_ms / MINUTE_MS;
        let minutes = [&mut self.this, &mut self.before].into_iter();
        for minute in minutes.filter(|minute| minute.number == number) {
            minute.take_back_wait(names, waited_ms);
        }
    }

    /// Counts a refused acquisition of these names.
    pub fn refuse(&mut self, names: &Names, now_ms: u64, queues: &Queues) {
        let minute = self.minute(now_ms);
        for name in names {
            minute.count(name, now_ms, queues, |counts| counts.refused += 1);
        }
    }

    /// Counts a holder that went while a waiter waited for the name.
    pub fn end_hold(&mut self, name: &Name, held_ms: u64, now_ms: u64, queues: &Queues) {
        self.minute(now_ms).count(name, now_ms, queues, |counts| {
            counts.grants += 1;
            counts.held_ms = counts.held_ms.saturating_add(held_ms);
        });
    }

    /// Returns the counts at `now_ms` of the names that have any. A name with counts in both
    /// minutes is returned once for each.
    pub fn counts(&self, now_ms: u64) -> impl Iterator<Item = (&Name, &Counts)> {
        let number = now_ms / MINUTE_MS;
        let minutes = [&self.before, &self.this].into_iter();
        let minutes = minutes.filter(move |minute| minute.number + 1 >= number);
        minutes.flat_map(|minute| minute.slots.iter().map(|slot| (&slot.name, &slot.counts)))
    }

    /// Returns the counts of the minute at `now_ms`. The steady clock never goes back.
    fn minute(&mut self, now_ms: u64) -> &mut Minute {
        let number = now_ms / MINUTE_MS;
        if number != self.this.number {
            self.begin_minute(number);
        }
        &mut self.this
    }

    #[cold]
    #[inline(never)]
    fn begin_minute(&mut self, number: u64) {
        std::mem::swap(&mut self.this, &mut self.before);
        self.this.clear(number);
    }
}

/// The counts of one minute.
///
/// Invariants:
/// 1. `indexes` has the index of each slot by its name.
/// 2. `idle` and `waited_for` together have one entry for each slot. Its rank is the slot's own or
///    lower.
#[derive(Debug, Default)]
struct Minute {
    number: u64,
    slots: Vec<Slot>,
    indexes: HashMap<Name, usize>,
    /// The index of the slot that was counted last.
    // perf: a wait and the end of its hold mostly follow each other, so they need no search.
    last: usize,
    /// Slots whose names had no waiter when they were looked at, and slots not looked at yet.
    // perf: ranks only rise, so an entry is corrected when it is the least. A new name then costs
    // O(log n), also if each command brings one.
    idle: BinaryHeap<Reverse<Rank>>,
    /// Slots whose names had waiters when they were looked at.
    waited_for: BinaryHeap<Reverse<Rank>>,
    /// The time at which `waited_for` was looked through last, and the number of queues that had
    /// been removed then.
    looked_through: (u64, u64),
    /// The number of names that were counted first in this minute.
    given: u64,
}

/// The rank of a slot: the least one is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    waited_ms: u64,
    refused: u64,
    arrival: u64,
    index: usize,
}

#[derive(Debug)]
struct Slot {
    name: Name,
    counts: Counts,
    arrival: u64,
}

impl Slot {
    /// Returns the rank of a slot whose name's present waiters have waited for `waiting_ms`.
    const fn rank(&self, index: usize, waiting_ms: u64) -> Rank {
        Rank {
            waited_ms: self.counts.waited_ms.saturating_add(waiting_ms),
            refused: self.counts.refused,
            arrival: self.arrival,
            index,
        }
    }
}

impl Minute {
    fn clear(&mut self, number: u64) {
        self.number = number;
        self.slots.clear();
        self.indexes.clear();
        self.idle.clear();
        self.waited_for.clear();
        self.given = 0;
    }

    /// Adds to the counts of a name, unless its key is too long.
    fn count(&mut self, name: &Name, now_ms: u64, queues: &Queues, add: impl FnOnce(&mut Counts)) {
        let last = self.slots.get(self.last);
        if last.is_none_or(|last| last.name != *name) {
            if !is_counted(name) {
                return;
            }
            let known = self.indexes.get(name).copied();
            self.last = known.unwrap_or_else(|| self.insert(name, now_ms, queues));
        }
        if let Some(slot) = self.slots.get_mut(self.last) {
            add(&mut slot.counts);
        }
    }

    /// Adds a name, and replaces another one if all slots are taken. Returns the index of its slot.
    #[inline(never)]
    fn insert(&mut self, name: &Name, now_ms: u64, queues: &Queues) -> usize {
        self.given += 1;
        let slot = Slot {
            name: name.clone(),
            counts: Counts::default(),
            arrival: self.given,
        };
        let replaced = self.take_least(now_ms, queues);
        let index = replaced.unwrap_or(self.slots.len());
        self.idle.push(Reverse(slot.rank(index, 0)));
        match replaced.and_then(|index| self.slots.get_mut(index)) {
            Some(least) => {
                let Slot { name, .. } = std::mem::replace(least, slot);
                self.indexes.remove(&name);
            }
            None => self.slots.push(slot),
        }
        self.indexes.insert(name.clone(), index);
        index
    }

    /// Removes the entry of the slot to replace, if all slots are taken. Returns the slot's index.
    fn take_least(&mut self, now_ms: u64, queues: &Queues) -> Option<usize> {
        if self.slots.len() < MOST_NAMES {
            return None;
        }
        // perf: once a millisecond is enough, unless all names had waiters.
        if self.looked_through.0 != now_ms {
            self.look_through(now_ms, queues);
        }
        let idle = self.take_idle(now_ms, queues);
        idle.or_else(|| {
            self.look_through(now_ms, queues);
            self.take_idle(now_ms, queues)
        })
        .or_else(|| self.take_waited_for(now_ms, queues))
    }

    /// Removes the entry of the least slot whose name has no waiter. Slots whose names have waiters
    /// go to `waited_for`.
    fn take_idle(&mut self, now_ms: u64, queues: &Queues) -> Option<usize> {
        loop {
            let mut least = self.idle.peek_mut()?;
            let index = least.0.index;
            let slot = self.slots.get(index)?;
            let rank = slot.rank(index, 0);
            if least.0 != rank {
                least.0 = rank;
                continue;
            }
            PeekMut::pop(least);
            match waiting_ms(&slot.name, now_ms, queues) {
                None => return Some(index),
                Some(ms) => self.waited_for.push(Reverse(slot.rank(index, ms))),
            }
        }
    }

    /// Moves the slots whose names no longer have waiters from `waited_for` to `idle`.
    fn look_through(&mut self, now_ms: u64, queues: &Queues) {
        let (_, removals) = self.looked_through;
        self.looked_through = (now_ms, queues.removals());
        // perf: a name has waiters until its queue is removed.
        if removals == queues.removals() {
            return;
        }
        let Self {
            slots,
            idle,
            waited_for,
            ..
        } = self;
        waited_for.retain(|entry| {
            let slot = slots.get(entry.0.index);
            let unwaited = slot.filter(|slot| !queues.has_queue(&slot.name));
            idle.extend(unwaited.map(|slot| Reverse(slot.rank(entry.0.index, 0))));
            unwaited.is_none()
        });
    }

    /// Removes the entry of the least slot whose name has waiters.
    fn take_waited_for(&mut self, now_ms: u64, queues: &Queues) -> Option<usize> {
        loop {
            let mut least = self.waited_for.peek_mut()?;
            let index = least.0.index;
            let slot = self.slots.get(index)?;
            let waiting_ms = waiting_ms(&slot.name, now_ms, queues).unwrap_or(0);
            let rank = slot.rank(index, waiting_ms);
            // The wait of a lost connection has ended earlier than it seemed.
            if least.0 >= rank {
                PeekMut::pop(least);
                return Some(index);
            }
            least.0 = rank;
        }
    }

    fn take_back_wait(&mut self, names: &Names, waited_ms: u64) {
        for name in names {
            let index = self.indexes.get(name);
            let slot = index.and_then(|index| self.slots.get_mut(*index));
            if let Some(Slot { counts, .. }) = slot {
                counts.waited_ms = counts.waited_ms.saturating_sub(waited_ms);
            }
        }
        let slots = self.slots.iter().enumerate();
        let ranks = slots.map(|(index, slot)| Reverse(slot.rank(index, 0)));
        self.idle = ranks.collect();
        self.waited_for.clear();
    }
}

/// Returns true if contention for a name is counted.
pub fn is_counted(name: &Name) -> bool {
    name.key().len() <= MOST_KEY_BYTES
}

/// Returns how long the first waiters of a name have waited together; `None`: it has no queue.
fn waiting_ms(name: &Name, now_ms: u64, queues: &Queues) -> Option<u64> {
    let has_queue = queues.has_queue(name);
    has_queue.then(|| {
        let first = queues.queue(name).take(MOST_WAITERS_RANKED);
        first
            .map(|(_, waiter)| now_ms.saturating_sub(waiter.since_ms))
            .sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(key: &str) -> Names {
        Names::one(Name::new(0, key.as_bytes()))
    }

    #[test]
    fn a_wait_that_goes_on_no_longer_keeps_its_name() {
        let (mut contention, queues) = (Contention::default(), Queues::default());
        contention.end_wait(&names("resumed"), 0, 5, &queues);
        for other in 1..MOST_NAMES {
            contention.refuse(&names(&other.to_string()), 5, &queues);
        }
        let mut shows = |key: &str, new: Option<&str>| {
            if let Some(new) = new {
                contention.refuse(&names(new), 5, &queues);
            } else {
                contention.resume_wait(&names("resumed"), 0, 5);
            }
            let mut counted = contention.counts(5);
            counted.any(|(name, _)| name.key() == key.as_bytes())
        };
        assert!(shows("resumed", Some("new")));
        assert!(shows("resumed", None));
        assert!(!shows("resumed", Some("newer")));
    }
}
