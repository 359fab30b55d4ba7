//! Positions in the queues, and what stands there.
//!
//! Positions grow at both ends. What stands at one lies in a list, at an index that is part of the
//! position: to find it needs no search. An index that became free is the next to be used, because its
//! memory was touched last. The list is kept in pieces: nothing that lies there is moved as it grows, which
//! would keep everybody waiting for as long as it takes to copy a hundred thousand.

/// A position in the queues: never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    order: i64,
    index: usize,
}

impl Position {
    /// A position before all others.
    pub const LEAST: Self = Self {
        order: i64::MIN,
        index: 0,
    };

    /// A number that no other position has that is taken, as small as it can be.
    pub const fn number(self) -> usize {
        self.index
    }
}

/// Where a waiter queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Behind everybody.
    Back,
    /// Before everybody.
    Front,
}

/// What stands at positions.
///
/// Invariants: `free` lists the indexes below `given` without an entry, each once; all pieces but the last are
/// full.
#[derive(Debug)]
pub struct Positions<T> {
    pieces: Vec<Vec<Option<(i64, T)>>>,
    /// How many indexes were given.
    given: usize,
    free: Vec<usize>,
    /// The last order that was given at each end.
    back: i64,
    front: i64,
}

/// How many indexes a piece has.
const PIECE: usize = 256;

/// How much memory is kept for those to come once nobody is left, in entries.
const KEPT: usize = 1024;

impl<T> Default for Positions<T> {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            given: 0,
            free: Vec::new(),
            back: 0,
            front: 0,
        }
    }
}

impl<T> Positions<T> {
    /// How many are taken.
    pub fn len(&self) -> usize {
        self.given - self.free.len()
    }

    /// Whether none is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slot(&self, index: usize) -> Option<&Option<(i64, T)>> {
        self.pieces.get(index / PIECE)?.get(index % PIECE)
    }

    fn slot_mut(&mut self, index: usize) -> Option<&mut Option<(i64, T)>> {
        self.pieces.get_mut(index / PIECE)?.get_mut(index % PIECE)
    }

    /// Puts an entry at the first index that was never given.
    #[inline(always)]
    fn push(&mut self, entry: Option<(i64, T)>) -> usize {
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => last.push(entry),
            _ => self.pieces.push(vec![entry]),
        }
        self.given += 1;
        self.given - 1
    }

    /// Takes a position, behind or before all others.
    #[inline(always)]
    pub fn add(&mut self, end: End, value: T) -> Position {
        let order = match end {
            End::Back => {
                self.back += 1;
                self.back
            }
            End::Front => {
                self.front -= 1;
                self.front
            }
        };
        self.put(order, value)
    }

    /// Takes a position again that was given up.
    pub fn add_again(&mut self, position: Position, value: T) -> Position {
        self.put(position.order, value)
    }

    #[inline(always)]
    fn put(&mut self, order: i64, value: T) -> Position {
        let entry = Some((order, value));
        let Some(index) = self.free.pop() else {
            let index = self.push(entry);
            return Position { order, index };
        };
        if let Some(slot) = self.slot_mut(index) {
            *slot = entry;
        }
        Position { order, index }
    }

    /// What stands at a position.
    pub fn get(&self, position: Position) -> Option<&T> {
        match self.slot(position.index)? {
            Some((order, value)) if *order == position.order => Some(value),
            _ => None,
        }
    }

    /// What stands at a position, to change.
    pub fn get_mut(&mut self, position: Position) -> Option<&mut T> {
        match self.slot_mut(position.index)? {
            Some((order, value)) if *order == position.order => Some(value),
            _ => None,
        }
    }

    /// Gives up a position.
    #[inline(always)]
    pub fn remove(&mut self, position: Position) -> Option<T> {
        let entry = self.slot_mut(position.index)?;
        let (_, value) = entry.take_if(|(order, _)| *order == position.order)?;
        self.free.push(position.index);
        if self.is_empty() && self.given > KEPT {
            self.clear();
        }
        Some(value)
    }

    /// Gives up all positions.
    pub fn clear(&mut self) {
        (self.pieces, self.free) = (Vec::new(), Vec::new());
        self.given = 0;
    }

    /// All that stands at positions, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.pieces
            .iter()
            .flatten()
            .flatten()
            .map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_grow_at_both_ends_and_none_is_given_twice() {
        let mut positions = Positions::default();
        let first = positions.add(End::Back, 'a');
        let last = positions.add(End::Back, 'b');
        let before = positions.add(End::Front, 'c');
        assert!(before < first && first < last);
        assert_eq!(positions.remove(first), Some('a'));
        let newer = positions.add(End::Back, 'd');
        assert!(newer > last);
        assert_eq!(newer.index, first.index);
        assert_eq!(positions.get(first), None);
        assert_eq!(positions.remove(first), None);
        assert_eq!(positions.get(newer), Some(&'d'));
        assert_eq!(positions.remove(newer), Some('d'));
        let again = positions.add_again(first, 'a');
        assert!(before < again && again < last);
        assert_eq!(positions.get(again), Some(&'a'));
        assert_eq!(positions.len(), 3);
        assert_eq!(positions.values().count(), 3);
    }

    #[test]
    fn many_lie_in_several_pieces_and_leave_nothing() {
        let mut positions = Positions::default();
        for round in 0..3 {
            let taken: Vec<Position> = (0..5 * PIECE)
                .map(|value| positions.add(End::Back, value))
                .collect();
            assert_eq!(positions.pieces.len(), 5, "in round {round}");
            let (gone, stay): (Vec<usize>, Vec<usize>) = (0..5 * PIECE).partition(|n| n % 3 == 0);
            for value in gone {
                assert_eq!(positions.remove(taken[value]), Some(value));
            }
            let mut left: Vec<usize> = positions.values().copied().collect();
            left.sort_unstable();
            assert_eq!(left, stay);
            for value in stay {
                assert_eq!(positions.get(taken[value]), Some(&value));
                assert_eq!(positions.remove(taken[value]), Some(value));
            }
            assert_eq!((positions.len(), positions.pieces.len()), (0, 0));
        }
    }
}
