//! The backlog: waiters that an operation has left to the timer.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use crate::state::slab::Position;
use crate::values::name::Name;
use crate::values::token::Token;

/// The waits of one token that one name blocks, looked at one after the other in queue order.
// perf: one grant can make thousands of waits of its token admissible. Each further grant would add
// them all to the work again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The token whose waits these are.
    pub token: Token,
    /// The name that blocks them.
    pub name: Name,
}

/// Walks by the position that each looks at next. The waiter at that position may have left.
// perf: most operations have no walk, and an empty tree costs nothing.
#[derive(Debug, Default)]
pub struct Walks(BTreeMap<Position, Vec<Walk>>);

impl Walks {
    /// Adds a walk that looks at a position next. Two equal walks at a position become one.
    pub fn insert(&mut self, position: Position, walk: Walk) {
        let walks = self.0.entry(position).or_default();
        if !walks.contains(&walk) {
            walks.push(walk);
        }
    }

    /// Removes and returns the walks at a position.
    pub fn remove(&mut self, position: Position) -> Vec<Walk> {
        self.0.remove(&position).unwrap_or_default()
    }

    /// Returns true if there is no walk.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Walk> {
        self.0.values().flatten()
    }
}

/// The positions that are left to the timer, each once, and the walks at them.
#[derive(Debug, Default)]
pub struct Backlog {
    by_time: BTreeSet<(u64, Position)>,
    times_ms: HashMap<Position, u64>,
    walks: Walks,
}

impl Backlog {
    /// Leaves a position and its walks to the timer until `ms` on the steady clock. An earlier time
    /// of the position stays.
    pub fn insert(&mut self, ms: u64, position: Position, walks: Vec<Walk>) {
        let earlier_ms = self.times_ms.get(&position).copied();
        if earlier_ms.is_none_or(|earlier_ms| ms < earlier_ms) {
            self.unlist(position);
            self.times_ms.insert(position, ms);
            self.by_time.insert((ms, position));
        }
        for walk in walks {
            self.walks.insert(position, walk);
        }
    }

    /// Removes a position. Returns its walks.
    pub fn remove(&mut self, position: Position) -> Vec<Walk> {
        self.unlist(position);
        self.walks.remove(position)
    }

    fn unlist(&mut self, position: Position) {
        if let Some(ms) = self.times_ms.remove(&position) {
            self.by_time.remove(&(ms, position));
        }
    }

    /// Returns the positions whose time has come at `steady_ms`, at most `most`.
    pub fn until(&self, steady_ms: u64, most: usize) -> Vec<Position> {
        let due = self.by_time.iter().take_while(|(ms, _)| *ms <= steady_ms);
        due.take(most).map(|(_, position)| *position).collect()
    }

    /// Returns the earliest time, on the steady clock in ms.
    pub fn next_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(ms, _)| *ms)
    }

    /// Returns the number of positions.
    pub fn len(&self) -> usize {
        self.by_time.len()
    }

    /// Returns true if nothing is left to the timer.
    pub fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// Returns the name of a walk at a position.
    pub fn walk_name(&self, position: Position) -> Option<&Name> {
        let walks = self.walks.0.get(&position)?;
        walks.first().map(|walk| &walk.name)
    }

    /// Returns true if the timer is to look at a position, or at waits of a token.
    pub fn includes(&self, position: Position, token: &Token) -> bool {
        self.times_ms.contains_key(&position) || self.walks.all().any(|walk| walk.token == *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::state::slab::{End, Slab};

    fn token(text: &str) -> Token {
        Token::new(text.as_bytes()).unwrap()
    }

    fn walk(text: &str, key: &str) -> Walk {
        let (token, name) = (token(text), Name::new(0, key.as_bytes()));
        Walk { token, name }
    }

    fn positions() -> [Position; 3] {
        let mut slab = Slab::default();
        [(); 3].map(|()| slab.add(End::Back, ()))
    }

    #[test]
    fn a_position_is_looked_at_by_its_earliest_time() {
        let [one, other, _] = positions();
        let mut backlog = Backlog::default();
        assert!(backlog.is_empty() && backlog.next_ms().is_none());
        for (ms, listed_ms) in [(20, 20), (30, 20), (20, 20), (10, 10)] {
            backlog.insert(ms, one, Vec::new());
            assert_eq!(backlog.next_ms(), Some(listed_ms), "{ms}");
            assert_eq!((backlog.len(), backlog.is_empty()), (1, false));
        }
        backlog.insert(15, other, Vec::new());
        assert_eq!(backlog.len(), 2);
        assert_eq!(backlog.until(9, 9), []);
        assert_eq!(backlog.until(10, 9), [one]);
        assert_eq!(backlog.until(15, 9), [one, other]);
        assert_eq!(backlog.until(15, 1), [one]);
        assert_eq!(backlog.remove(one), []);
        assert_eq!((backlog.len(), backlog.next_ms()), (1, Some(15)));
        assert_eq!(backlog.remove(other), []);
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_position_has_its_walks_once() {
        let [one, other, elsewhere] = positions();
        let mut backlog = Backlog::default();
        backlog.insert(10, one, vec![walk("a", "k"), walk("b", "k")]);
        backlog.insert(20, one, vec![walk("a", "k"), walk("a", "j")]);
        backlog.insert(10, other, Vec::new());
        let included = |position, text: &str| backlog.includes(position, &token(text));
        assert!(included(one, "none") && included(other, "none"));
        assert!(included(elsewhere, "a") && included(elsewhere, "b"));
        assert!(!included(elsewhere, "c"));
        assert_eq!(backlog.walk_name(one), Some(&Name::new(0, b"k")));
        assert_eq!(backlog.walk_name(other), None);
        let walks = backlog.remove(one);
        assert_eq!(walks, [walk("a", "k"), walk("b", "k"), walk("a", "j")]);
        assert_eq!(backlog.remove(one), []);
        assert!(!backlog.includes(one, &token("a")));
        let mut walks = Walks::default();
        assert!(walks.is_empty());
        walks.insert(one, walk("a", "k"));
        assert!(!walks.is_empty());
    }
}
