//! The work list: the waiters that an operation still has to look at.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use crate::hints::unlikely;
use crate::state::queue::Position;
use crate::transaction::{EntryId, Transaction};

/// The largest capacity of a work list, in positions, that is kept for the next one.
pub(super) const MOST_KEPT: usize = 256;

/// The waiters that an operation still has to look at, in queue order.
pub(super) struct WorkList {
    pub(super) positions: BinaryHeap<Reverse<Position>>,
    /// Names to schedule at the end of the work.
    pub(super) names: SmallVec<[EntryId; 4]>,
}

impl WorkList {
    /// Returns an empty work list.
    pub(super) fn new(tx: &mut Transaction) -> Self {
        Self {
            positions: std::mem::take(&mut tx.lists.heap),
            names: SmallVec::new(),
        }
    }

    /// Adds waiters to look at.
    pub(super) fn extend(&mut self, positions: impl IntoIterator<Item = Position>) {
        self.positions.extend(positions.into_iter().map(Reverse));
    }

    /// Removes and returns the first waiter in queue order, with all its duplicates.
    pub(super) fn pop_first(&mut self) -> Option<Position> {
        let first = self.positions.pop()?;
        while self.positions.peek() == Some(&first) {
            self.positions.pop();
        }
        Some(first.0)
    }

    /// Removes and returns the names, each once.
    pub(super) fn take_names(&mut self) -> SmallVec<[EntryId; 4]> {
        let mut names = std::mem::take(&mut self.names);
        if unlikely(names.len() > 1) {
            names.sort_unstable();
            names.dedup();
        }
        names
    }
}
