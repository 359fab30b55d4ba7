//! The work list: the waiters that an operation still has to look at.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use smallvec::SmallVec;

use crate::hints::unlikely;
use crate::state::backlog::{Walk, Walks};
use crate::state::queue::Position;
use crate::transaction::{EntryId, Transaction};

/// The largest capacity of a work list, in positions, that is kept for the next one.
const MOST_KEPT: usize = 256;

/// The waiters that an operation still has to look at, in queue order.
pub(super) struct WorkList {
    positions: BinaryHeap<Reverse<Position>>,
    /// The walks at these positions.
    walks: Walks,
    /// Names to schedule at the end of the work.
    names: SmallVec<[EntryId; 4]>,
}

impl WorkList {
    /// Returns an empty work list.
    pub(super) fn new(tx: &mut Transaction) -> Self {
        Self {
            positions: std::mem::take(&mut tx.lists.heap),
            walks: Walks::default(),
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

    /// Adds a walk that looks at a position next.
    pub(super) fn walk(&mut self, position: Position, walk: Walk) {
        self.extend([position]);
        self.walks.insert(position, walk);
    }

    /// Returns true if there is a walk.
    pub(super) fn has_walks(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Removes and returns the walks at a position.
    pub(super) fn walks_at(&mut self, position: Position) -> Vec<Walk> {
        self.walks.remove(position)
    }

    /// Adds names to schedule at the end of the work.
    pub(super) fn schedule(&mut self, names: impl IntoIterator<Item = EntryId>) {
        self.names.extend(names);
    }

    /// Returns true if no waiter is left to look at.
    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Removes and returns the waiters that are left with the walks at them, in no order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Position, Vec<Walk>)> + '_ {
        let Self {
            positions, walks, ..
        } = self;
        let positions = positions.drain().map(|Reverse(position)| position);
        positions.map(|position| (position, walks.remove(position)))
    }

    /// Returns the buffer of the list to the transaction, for the next list.
    pub(super) fn put_back(self, tx: &mut Transaction) {
        if self.positions.capacity() <= MOST_KEPT {
            tx.lists.heap = self.positions;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::slab::{End, Slab};
    use crate::values::name::Name;
    use crate::values::token::Token;

    fn empty() -> WorkList {
        WorkList {
            positions: BinaryHeap::new(),
            walks: Walks::default(),
            names: SmallVec::new(),
        }
    }

    #[test]
    fn positions_come_in_order_and_once_with_their_walks() {
        let mut slab = Slab::default();
        let [one, other] = [(); 2].map(|()| slab.add(End::Back, ()));
        let mut work = empty();
        assert!(work.is_empty() && !work.has_walks());
        work.extend([other, one, other]);
        assert!(!work.is_empty() && !work.has_walks());
        let walk = Walk {
            token: Token::new(b"a").expect("a token"),
            name: Name::new(0, b"k"),
        };
        work.walk(one, walk.clone());
        assert!(work.has_walks());
        assert_eq!(work.walks_at(other), []);
        assert_eq!(work.pop_first(), Some(one));
        assert_eq!(work.walks_at(one), [walk]);
        assert!(!work.has_walks());
        assert_eq!(work.pop_first(), Some(other));
        assert_eq!(work.pop_first(), None);
        assert!(work.is_empty());
    }
}
