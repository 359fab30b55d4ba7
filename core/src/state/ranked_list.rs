//! An ordered list of positions that returns the number of positions before a given one.

use std::collections::VecDeque;

/// The most positions in one piece.
const MOST_IN_A_PIECE: usize = 256;

/// A set of positions, kept in order in ordered pieces.
///
/// Invariants:
/// 1. No piece is empty.
/// 2. Two neighbouring pieces together are more than half as long as the longest piece may be.
// perf: adding or removing a position costs a binary search and moves a part of one piece, or
// nothing at an end. The number of positions before one is the sum of the lengths of the pieces
// before its own: a few hundred pieces for 100,000 positions. A piece is split only if a position
// is added to a full one. That is rare, because newcomers are added at an end.
#[derive(Debug)]
pub struct RankedList<T> {
    pieces: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for RankedList<T> {
    fn default() -> Self {
        Self {
            pieces: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T: Ord + Copy> RankedList<T> {
    /// Returns the number of positions.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no position.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first position.
    pub fn first(&self) -> Option<T> {
        self.pieces.front()?.front().copied()
    }

    /// Returns all positions, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.pieces.iter().flatten().copied()
    }

    /// Returns the positions behind `front`, up to `back` inclusive, in order. `None` is no bound.
    pub fn between(&self, front: Option<T>, back: Option<T>) -> impl Iterator<Item = T> + '_ {
        let (piece, within) = front.map_or((0, 0), |front| {
            let (piece, within) = self.find(front);
            (piece, within.map_or_else(|at| at, |at| at + 1))
        });
        let pieces = self.pieces.iter().skip(piece).enumerate();
        let behind = pieces.flat_map(move |(number, piece)| {
            let from = if number == 0 { within } else { 0 };
            piece.iter().skip(from)
        });
        behind
            .copied()
            .take_while(move |position| back.is_none_or(|back| *position <= back))
    }

    /// Returns the piece that contains a position, or would contain it, and the place in that
    /// piece. A position behind all others is in no piece.
    fn find(&self, position: T) -> (usize, Result<usize, usize>) {
        // perf: a waiter that leaves is usually the first.
        if self.first() == Some(position) {
            return (0, Ok(0));
        }
        let ends_before = |piece: &VecDeque<T>| piece.back() < Some(&position);
        let at = self.pieces.partition_point(ends_before);
        let within = self
            .pieces
            .get(at)
            .map(|piece| piece.binary_search(&position));
        (at, within.unwrap_or(Err(0)))
    }

    /// Returns true if the list contains a position.
    pub fn contains(&self, position: T) -> bool {
        self.find(position).1.is_ok()
    }

    /// Returns the number of positions before this one.
    pub fn before(&self, position: T) -> usize {
        let (at, within) = self.find(position);
        let pieces = self.pieces.iter().take(at).map(VecDeque::len);
        pieces.sum::<usize>() + within.unwrap_or_else(|at| at)
    }

    /// Adds a position that is not listed yet. Usually it is behind all others.
    pub fn insert(&mut self, position: T) {
        match self.pieces.back_mut() {
            Some(last) if last.back() >= Some(&position) => self.insert_between(position),
            Some(last) if last.len() < MOST_IN_A_PIECE => {
                last.push_back(position);
                self.len += 1;
            }
            Some(_) | None => {
                self.pieces.push_back(VecDeque::from([position]));
                self.len += 1;
            }
        }
    }

    /// Adds a position that is not behind all others, unless it is listed already.
    #[inline(never)]
    fn insert_between(&mut self, position: T) {
        let (at, within) = self.find(position);
        let (Err(within), Some(piece)) = (within, self.pieces.get_mut(at)) else {
            return;
        };
        self.len += 1;
        if piece.len() < MOST_IN_A_PIECE {
            piece.insert(within, position);
            return;
        }
        let rest = piece.split_off(within);
        piece.push_back(position);
        self.pieces.insert(at + 1, rest);
        self.join(at + 1);
        self.join_to_the_one_before(at);
    }

    /// Removes a position. Returns true if it was listed.
    pub fn remove(&mut self, position: T) -> bool {
        let (at, within) = self.find(position);
        let (Ok(within), Some(piece)) = (within, self.pieces.get_mut(at)) else {
            return false;
        };
        piece.remove(within);
        self.len -= 1;
        if piece.is_empty() {
            self.pieces.remove(at);
        }
        self.join(at);
        self.join_to_the_one_before(at);
        true
    }

    fn join_to_the_one_before(&mut self, at: usize) {
        if let Some(before) = at.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins a piece with the next one if both together fill at most half a piece.
    fn join(&mut self, at: usize) {
        let len_of = |at: usize| self.pieces.get(at).map(VecDeque::len);
        let (Some(one), Some(other)) = (len_of(at), len_of(at + 1)) else {
            return;
        };
        if one + other > MOST_IN_A_PIECE / 2 {
            return;
        }
        let other = self.pieces.remove(at + 1).unwrap_or_default();
        if let Some(piece) = self.pieces.get_mut(at) {
            piece.extend(other);
        }
    }
}

/// Returns the elements of two ordered sequences, in order.
pub fn merged<T: Ord>(
    one: impl Iterator<Item = T>,
    other: impl Iterator<Item = T>,
) -> impl Iterator<Item = T> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if second < first => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn two_lines_are_merged_in_order(one in proptest::collection::vec(0..50, 0..20), other in proptest::collection::vec(0..50, 0..20)) {
            let sorted = |mut numbers: Vec<i32>| { numbers.sort_unstable(); numbers };
            let both = sorted([one.clone(), other.clone()].concat());
            prop_assert!(merged(sorted(one).into_iter(), sorted(other).into_iter()).eq(both));
        }

        /// Runs of positions, so that pieces fill up, are split, and are joined again.
        #[test]
        fn it_is_a_set_that_counts(steps in proptest::collection::vec((0u8..4, 0i64..4000, 1i64..1500), 1..30)) {
            let (mut line, mut set) = (RankedList::default(), BTreeSet::new());
            for (kind, start, many) in steps {
                for position in start..start + many {
                    match kind {
                        0 => prop_assert_eq!(line.remove(position), set.remove(&position)),
                        1 => { line.insert(position * 2); set.insert(position * 2); }
                        _ => { line.insert(position); set.insert(position); }
                    }
                }
                prop_assert_eq!(line.len(), set.len());
                prop_assert_eq!(line.is_empty(), set.is_empty());
                prop_assert_eq!(line.first(), set.first().copied());
                prop_assert!(line.iter().eq(set.iter().copied()));
                for position in [start - 1, start, start + many / 2, start + many, i64::MAX] {
                    prop_assert_eq!(line.before(position), set.range(..position).count());
                    prop_assert_eq!(line.contains(position), set.contains(&position));
                }
                for (front, back) in [(None, Some(start)), (Some(start), Some(start + many)), (Some(start - 1), None)] {
                    let is_between = |it: &&i64| front.is_none_or(|front| **it > front) && back.is_none_or(|back| **it <= back);
                    prop_assert!(line.between(front, back).eq(set.iter().filter(is_between).copied()));
                }
                let sizes: Vec<usize> = line.pieces.iter().map(VecDeque::len).collect();
                prop_assert!(sizes.iter().all(|len| (1..=MOST_IN_A_PIECE).contains(len)));
                prop_assert!(sizes.windows(2).all(|two| two.iter().sum::<usize>() > MOST_IN_A_PIECE / 2), "{:?}", sizes);
            }
        }
    }

    /// Returns the lengths of the pieces after these positions were removed from two full pieces.
    fn sizes_without(gone: impl Iterator<Item = i64>) -> Vec<usize> {
        let mut line = RankedList::default();
        (0..2 * MOST_IN_A_PIECE as i64).for_each(|position| line.insert(position));
        gone.for_each(|position| assert!(line.remove(position)));
        line.pieces.iter().map(VecDeque::len).collect()
    }

    #[test]
    fn two_pieces_are_joined_when_they_fill_half_a_piece() {
        assert_eq!(sizes_without(0..0), [256, 256]);
        assert_eq!(sizes_without((0..192).chain(320..511)), [64, 65]);
        assert_eq!(sizes_without((0..192).chain(320..512)), [128]);
    }

    /// A position in a full piece splits it, and the rest joins the piece behind it.
    #[test]
    fn the_rest_of_a_split_piece_is_joined() {
        let mut line = RankedList::default();
        (0..300).for_each(|position| line.insert(2 * position));
        let sizes = |line: &RankedList<i64>| -> Vec<usize> {
            line.pieces.iter().map(VecDeque::len).collect()
        };
        assert_eq!(sizes(&line), [256, 44]);
        line.insert(2 * 200 + 1);
        assert_eq!(sizes(&line), [202, 99]);
        line.insert(11);
        assert_eq!(sizes(&line), [203, 99]);
    }
}
