//! Storage of waiters by their positions in the queues.
//!
//! Positions grow at both ends of their order. A position contains the index of its entry, so a
//! look-up needs no search.

// perf: a freed index is used again first, because its memory was touched last. Entries are kept
// in pieces and never move, because copying a hundred thousand of them at once would delay every
// client. The crate `slab` has one vector, which doubles. With that crate, 100,000 places took 676
// bytes each instead of 539, and a PING beside them took up to 13 ms instead of 6. A hand-over took
// 0.6 % fewer instructions.

use crate::hints::unlikely;

/// A position in the queues, compared by its order. [`Slab::add`] gives an order that was never used,
/// and [`Slab::add_again`] one that was.
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

    /// Returns a number that no other occupied position has. The numbers are dense, because freed
    /// ones are used again.
    pub const fn number(self) -> usize {
        self.index
    }
}

/// The end of the queues at which a waiter is enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Behind all positions.
    Back,
    /// Before all positions.
    Front,
}

/// Entries by position.
///
/// Invariants:
/// 1. `free` lists each index below `given` without an entry once.
/// 2. All pieces except the last have `PIECE` slots, with an entry or free.
#[derive(Debug)]
pub struct Slab<T> {
    pieces: Vec<Vec<Option<(i64, T)>>>,
    /// The number of indexes given since the slab was last cleared, free ones included.
    given: usize,
    free: Vec<usize>,
    /// The last order given at the back.
    back: i64,
    front: i64,
}

/// The number of indexes in a piece.
// perf: a piece of waiters takes a little less than 64 KiB, a size of the server's allocator. The
// next size is 80 KiB.
const PIECE: usize = 232;

/// The most entries whose memory is kept once no position is occupied.
const KEPT: usize = 1024;

impl<T> Default for Slab<T> {
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

impl<T> Slab<T> {
    /// Returns the number of occupied positions.
    pub fn len(&self) -> usize {
        self.given - self.free.len()
    }

    /// Returns true if no position is occupied.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slot(&self, index: usize) -> Option<&Option<(i64, T)>> {
        self.pieces.get(index / PIECE)?.get(index % PIECE)
    }

    fn slot_mut(&mut self, index: usize) -> Option<&mut Option<(i64, T)>> {
        self.pieces.get_mut(index / PIECE)?.get_mut(index % PIECE)
    }

    /// Stores an entry at the next new index. Returns the index.
    #[inline(always)]
    fn push(&mut self, entry: Option<(i64, T)>) -> usize {
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => {
                if unlikely(last.len() == last.capacity()) {
                    grow(last);
                }
                last.push(entry);
            }
            _ => self.pieces.push(vec![entry]),
        }
        self.given += 1;
        self.given - 1
    }

    /// Stores a value at a new position, behind or before all others. Returns the position.
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

    /// Stores a value again at the order of a position that was removed. Returns the position,
    /// whose index may differ.
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

    /// Returns the value at a position, if the position is occupied.
    pub fn get(&self, position: Position) -> Option<&T> {
        match self.slot(position.index)? {
            Some((order, value)) if *order == position.order => Some(value),
            _ => None,
        }
    }

    /// Returns the value at a position for a change, if the position is occupied.
    pub fn get_mut(&mut self, position: Position) -> Option<&mut T> {
        match self.slot_mut(position.index)? {
            Some((order, value)) if *order == position.order => Some(value),
            _ => None,
        }
    }

    /// Removes a position. Returns its value, if the position was occupied.
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

    /// Removes all positions. Their orders are not used again.
    pub fn clear(&mut self) {
        (self.pieces, self.free) = (Vec::new(), Vec::new());
        self.given = 0;
    }

    /// Returns all values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.pieces
            .iter()
            .flatten()
            .flatten()
            .map(|(_, value)| value)
    }
}

/// Doubles the room of a piece that is full, up to the whole piece.
#[inline(never)]
fn grow<E>(piece: &mut Vec<E>) {
    let more = piece.len().max(4).min(PIECE - piece.len());
    piece.reserve_exact(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_grow_at_both_ends_and_none_is_given_twice() {
        let mut slab = Slab::default();
        let first = slab.add(End::Back, 'a');
        let last = slab.add(End::Back, 'b');
        let before = slab.add(End::Front, 'c');
        assert!(before < first && first < last);
        assert_eq!(slab.remove(first), Some('a'));
        let newer = slab.add(End::Back, 'd');
        assert!(newer > last);
        assert_eq!(newer.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(newer), Some(&'d'));
        assert_eq!(slab.remove(newer), Some('d'));
        let again = slab.add_again(first, 'a');
        assert!(before < again && again < last);
        assert_eq!(slab.get(again), Some(&'a'));
        assert_eq!(slab.len(), 3);
        assert_eq!(slab.values().count(), 3);
    }

    #[test]
    fn many_entries_fill_several_pieces_and_leave_none() {
        let mut slab = Slab::default();
        for round in 0..3 {
            let taken: Vec<Position> = (0..5 * PIECE)
                .map(|value| slab.add(End::Back, value))
                .collect();
            assert_eq!(slab.pieces.len(), 5, "in round {round}");
            let (gone, stay): (Vec<usize>, Vec<usize>) = (0..5 * PIECE).partition(|n| n % 3 == 0);
            for value in gone {
                assert_eq!(slab.remove(taken[value]), Some(value));
            }
            let mut left: Vec<usize> = slab.values().copied().collect();
            left.sort_unstable();
            assert_eq!(left, stay);
            for value in stay {
                assert_eq!(slab.get(taken[value]), Some(&value));
                assert_eq!(slab.remove(taken[value]), Some(value));
            }
            assert_eq!((slab.len(), slab.pieces.len()), (0, 0));
        }
    }

    /// The room of a piece doubles up to a whole piece, so a few waiters take little memory.
    #[test]
    fn a_piece_doubles_its_room() {
        let mut slab = Slab::default();
        let mut rooms = Vec::new();
        for value in 0..PIECE {
            slab.add(End::Back, value);
            rooms.push(slab.pieces[0].capacity());
        }
        let after = |count: usize| rooms[count - 1];
        for (count, room) in [
            (6, 10),
            (11, 20),
            (21, 40),
            (41, 80),
            (81, 160),
            (161, PIECE),
        ] {
            assert_eq!(after(count), room, "{count} entries");
        }
        assert_eq!(slab.pieces.len(), 1);
    }

    #[test]
    fn memory_of_1024_entries_is_kept() {
        for (count, is_kept) in [(KEPT, true), (KEPT + 1, false)] {
            let mut slab = Slab::default();
            let taken: Vec<Position> = (0..count).map(|it| slab.add(End::Front, it)).collect();
            assert!(taken.windows(2).all(|two| two[1] < two[0]));
            for position in taken {
                slab.remove(position);
            }
            assert_eq!(!slab.pieces.is_empty(), is_kept, "{count} entries");
            assert!(slab.is_empty());
        }
    }

    #[test]
    fn an_old_position_changes_nothing() {
        let mut slab = Slab::default();
        let old = slab.add(End::Back, 'a');
        slab.remove(old);
        slab.add(End::Back, 'b');
        assert_eq!(slab.get_mut(old), None);
    }
}
