//! Positions in the queues, and what stands there.
//!
//! Positions grow at both ends. What stands at one lies in a list, at an index that is part of the
//! position: to find it needs no search. An index that became free is the next to be used, because its
//! memory was touched last.

/// A position in the queues: never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    order: i64,
    index: usize,
}

impl Position {
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
/// Invariant: `free` lists the indexes without an entry, each once.
#[derive(Debug)]
pub struct Positions<T> {
    entries: Vec<Option<(i64, T)>>,
    free: Vec<usize>,
    /// The last order that was given at each end.
    back: i64,
    front: i64,
}

/// How much memory is kept for those to come once nobody is left, in entries.
const KEPT: usize = 1024;

impl<T> Default for Positions<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            back: 0,
            front: 0,
        }
    }
}

impl<T> Positions<T> {
    /// How many are taken.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether none is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a position, behind or before all others.
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

    fn put(&mut self, order: i64, value: T) -> Position {
        let entry = Some((order, value));
        let free = self.free.pop();
        let index = free.unwrap_or(self.entries.len());
        match self.entries.get_mut(index) {
            Some(free) => *free = entry,
            None => self.entries.push(entry),
        }
        Position { order, index }
    }

    /// What stands at a position.
    pub fn get(&self, position: Position) -> Option<&T> {
        match self.entries.get(position.index)? {
            Some((order, value)) if *order == position.order => Some(value),
            _ => None,
        }
    }

    /// What stands at a position, to change.
    pub fn get_mut(&mut self, position: Position) -> Option<&mut T> {
        match self.entries.get_mut(position.index)? {
            Some((order, value)) if *order == position.order => Some(value),
            _ => None,
        }
    }

    /// Gives up a position.
    pub fn remove(&mut self, position: Position) -> Option<T> {
        let entry = self.entries.get_mut(position.index)?;
        let (_, value) = entry.take_if(|(order, _)| *order == position.order)?;
        self.free.push(position.index);
        if self.is_empty() && self.entries.len() > KEPT {
            (self.entries, self.free) = (Vec::new(), Vec::new());
        }
        Some(value)
    }

    /// Gives up all positions.
    pub fn clear(&mut self) {
        (self.entries, self.free) = (Vec::new(), Vec::new());
    }

    /// All that stands at positions, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten().map(|(_, value)| value)
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
}
