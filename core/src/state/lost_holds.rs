//! Holds that ended without a release, by cause and by length.

use crate::state::buckets::Buckets;
use crate::values::holder::Holder;
use crate::values::lock::Lock;

/// The cause of a hold's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its lease ended.
    Expired,
    /// Its key was deleted, overwritten or evicted before the lease ended.
    Deleted,
    /// The connection that it was tied to closed.
    Disconnected,
}

/// A hold that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostHold {
    loss: Loss,
    held_ms: u64,
}

impl LostHold {
    /// Returns the hold of a grant that had ended by `now_ms`. The hold lasted until its deadline
    /// at most, however late its end was noticed.
    pub fn of(own: &Holder, loss: Loss, now_ms: u64) -> Self {
        let until_ms = own.deadline_ms.min(now_ms);
        let held_ms = until_ms.saturating_sub(own.since_ms);
        Self { loss, held_ms }
    }

    /// Returns the time for which the hold lasted, in ms.
    pub const fn held_ms(self) -> u64 {
        self.held_ms
    }
}

/// Counts of lost holds, and their lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostHolds {
    /// Holds that ended by [`Loss::Expired`].
    pub expired: u64,
    /// Holds that ended by [`Loss::Deleted`].
    pub deleted: u64,
    /// Holds that ended by [`Loss::Disconnected`].
    pub disconnected: u64,
    /// The time for which each hold lasted.
    pub times: Buckets,
}

impl LostHolds {
    /// Counts one lost hold.
    pub fn record(&mut self, hold: LostHold) {
        let count = match hold.loss {
            Loss::Expired => &mut self.expired,
            Loss::Deleted => &mut self.deleted,
            Loss::Disconnected => &mut self.disconnected,
        };
        *count += 1;
        self.times.record(hold.held_ms);
    }

    /// Adds the counts of `others`.
    pub fn add(&mut self, others: &Self) {
        self.expired += others.expired;
        self.deleted += others.deleted;
        self.disconnected += others.disconnected;
        self.times.add(&others.times);
    }
}

/// Counts of holds whose lock left its key without an operation of the lock table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnlinkedHolds {
    lost: LostHolds,
    /// The holds of the lock that left its key last. The server reports only afterwards that RENAME
    /// or MOVE has put the lock under another key.
    last: LostHolds,
}

impl UnlinkedHolds {
    /// Counts the holds of a lock that left its key at `now_ms`.
    pub fn unlink(&mut self, lock: &Lock, now_ms: u64) {
        self.lost.add(&self.last);
        self.last = LostHolds::default();
        for own in lock.holders().iter() {
            // The server expires keys by its own clock, which may be 1 ms ahead of `now_ms`.
            let loss = if own.deadline_ms <= now_ms {
                Loss::Expired
            } else {
                Loss::Deleted
            };
            self.last.record(LostHold::of(own, loss, now_ms));
        }
    }

    /// Records that the lock that left its key last has arrived at another key, so its holds go on.
    pub fn arrive(&mut self) {
        self.last = LostHolds::default();
    }

    /// Returns the counts.
    pub fn lost(&self) -> LostHolds {
        let mut lost = self.lost;
        lost.add(&self.last);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::data::Data;
    use crate::values::holder::Mode;
    use crate::values::session_id::SessionId;
    use crate::values::token::Token;

    /// Returns a shared lock held since 1000 ms, with one holder for each deadline.
    fn lock(deadlines_ms: &[u64]) -> Lock {
        let holder = |(fence, deadline_ms): (u64, &u64)| Holder {
            token: Token::new(fence.to_string().as_bytes()).unwrap(),
            fence,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: *deadline_ms,
            lease_ms: 1,
            since_ms: 1_000,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        };
        let holders = (1..).zip(deadlines_ms).map(holder).collect();
        Lock::held(Mode::Shared, holders).unwrap()
    }

    fn counts(unlinked: &UnlinkedHolds) -> (u64, u64, u64, u64) {
        let lost = unlinked.lost();
        let times = lost.times;
        (lost.expired, lost.deleted, times.count(), times.sum_ms())
    }

    #[test]
    fn a_lock_that_leaves_its_key_loses_each_hold_by_its_own_cause() {
        let mut unlinked = UnlinkedHolds::default();
        unlinked.unlink(&lock(&[1_300, 9_000]), 2_000);
        assert_eq!(counts(&unlinked), (1, 1, 2, 300 + 1_000));
        unlinked.unlink(&lock(&[1_010]), 2_000);
        assert_eq!(counts(&unlinked), (2, 1, 3, 300 + 1_000 + 10));
    }

    #[test]
    fn a_lock_that_arrives_elsewhere_loses_no_hold() {
        let mut unlinked = UnlinkedHolds::default();
        unlinked.unlink(&lock(&[9_000]), 2_000);
        unlinked.unlink(&lock(&[9_000, 9_000]), 2_000);
        unlinked.arrive();
        assert_eq!(counts(&unlinked), (0, 1, 1, 1_000));
        unlinked.arrive();
        assert_eq!(counts(&unlinked), (0, 1, 1, 1_000));
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_hold_longer() {
        let mut unlinked = UnlinkedHolds::default();
        unlinked.unlink(&lock(&[9_000]), 500);
        assert_eq!(counts(&unlinked), (0, 1, 1, 0));
    }

    #[test]
    fn counts_add_up_by_cause() {
        let mut all = LostHolds::default();
        for (loss, held_ms) in [
            (Loss::Expired, 1),
            (Loss::Deleted, 2),
            (Loss::Deleted, 3),
            (Loss::Disconnected, 4),
            (Loss::Disconnected, 5),
            (Loss::Disconnected, 6),
        ] {
            let mut one = LostHolds::default();
            one.record(LostHold { loss, held_ms });
            all.add(&one);
        }
        assert_eq!((all.expired, all.deleted, all.disconnected), (1, 2, 3));
    }
}
