//! The content of `top`, and the effects of key presses.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::survey::Snapshot;
use crate::arguments::SortBy;
use crate::hot::Hot;
use crate::lock::Lock;

/// The number of rows that the page keys move by.
const PAGE: usize = 10;

/// The rows before and behind the mark that can be on the screen with it.
const NEAR: usize = 100;

/// The locks in display order, and the marked row.
pub struct Board {
    pub server: String,
    pub rows: Vec<Row>,
    pub sort: SortBy,
    pub is_reversed: bool,
    /// The time since when every row was read. `None` before the first snapshot.
    pub since: Option<Instant>,
    /// True if no lock is missing.
    pub is_complete: bool,
    /// Why the locks couldn't be read the last time.
    pub failure: Option<String>,
    marked: usize,
}

pub struct Row {
    pub key: Vec<u8>,
    pub lock: Lock,
    /// The contention of the last minutes, if there was any.
    pub hot: Option<Hot>,
}

impl Row {
    /// Returns how long clients waited in the last minutes.
    pub fn waited_ms(&self) -> u64 {
        self.hot.as_ref().map_or(0, |hot| hot.waited_ms)
    }
}

/// The action of a key press.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Stop,
    Quit,
}

impl Board {
    pub fn new(server: String, sort: SortBy) -> Board {
        Board {
            server,
            rows: Vec::new(),
            sort,
            is_reversed: false,
            since: None,
            is_complete: false,
            failure: None,
            marked: 0,
        }
    }

    /// Shows a snapshot. After a failure, the old rows stay on the board.
    pub fn show(&mut self, snapshot: Result<Snapshot, String>) {
        match snapshot {
            Ok(Snapshot {
                locks,
                mut hot,
                since,
                is_complete,
            }) => {
                self.failure = None;
                self.since = Some(since);
                self.is_complete = is_complete;
                let marked = self.rows.get(self.marked).map(|row| row.key.clone());
                let rows = locks.into_iter().map(|(key, lock)| {
                    let hot = hot.remove(&key);
                    Row { key, lock, hot }
                });
                self.rows = rows.collect();
                self.order(marked);
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Returns the index of the marked row, or `None` without rows.
    pub fn marked(&self) -> Option<usize> {
        Some(self.marked).filter(|marked| *marked < self.rows.len())
    }

    /// Returns the keys of the rows around the mark.
    pub fn near_mark(&self) -> BTreeSet<Vec<u8>> {
        let first = self.marked.saturating_sub(NEAR);
        let near = self.rows.iter().skip(first).take(2 * NEAR);
        near.map(|row| row.key.clone()).collect()
    }

    pub fn press(&mut self, key: KeyEvent) -> Action {
        let last = self.rows.len().saturating_sub(1);
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Char('c'), true) | (KeyCode::Char('q') | KeyCode::Esc, false) => {
                return Action::Quit
            }
            (KeyCode::Char('z'), true) => return Action::Stop,
            (KeyCode::Char('t'), false) => self.sort_by(SortBy::Waited),
            (KeyCode::Char('w'), false) => self.sort_by(SortBy::Waiters),
            (KeyCode::Char('h'), false) => self.sort_by(SortBy::Holders),
            (KeyCode::Char('a'), false) => self.sort_by(SortBy::Age),
            (KeyCode::Char('l'), false) => self.sort_by(SortBy::Lease),
            (KeyCode::Char('k'), false) => self.sort_by(SortBy::Key),
            (KeyCode::Char('r'), false) => self.reverse(),
            (KeyCode::Up, _) => self.marked = self.marked.saturating_sub(1),
            (KeyCode::Down, _) => self.marked = (self.marked + 1).min(last),
            (KeyCode::PageUp, _) => self.marked = self.marked.saturating_sub(PAGE),
            (KeyCode::PageDown, _) => self.marked = (self.marked + PAGE).min(last),
            (KeyCode::Home, _) => self.marked = 0,
            (KeyCode::End, _) => self.marked = last,
            _ => {}
        }
        Action::Nothing
    }

    fn sort_by(&mut self, sort: SortBy) {
        self.sort = sort;
        self.is_reversed = false;
        self.begin_at_the_top();
    }

    fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.begin_at_the_top();
    }

    fn begin_at_the_top(&mut self) {
        self.order(None);
        self.marked = 0;
    }

    /// Sorts the rows, the greatest first. Equal rows are sorted by key, so their order is stable.
    /// The mark follows its lock.
    fn order(&mut self, marked: Option<Vec<u8>>) {
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        self.rows.sort_by(|a, b| {
            let order = order(sort, a, b);
            let order = if is_reversed { order.reverse() } else { order };
            order.then_with(|| a.key.cmp(&b.key))
        });
        let found = marked.and_then(|key| self.rows.iter().position(|row| row.key == key));
        self.marked = found
            .unwrap_or(self.marked)
            .min(self.rows.len().saturating_sub(1));
    }
}

fn order(sort: SortBy, a: &Row, b: &Row) -> Ordering {
    let by = |value: fn(&Lock) -> u64| Reverse(value(&a.lock)).cmp(&Reverse(value(&b.lock)));
    match sort {
        SortBy::Waited => {
            let by_time = Reverse(a.waited_ms()).cmp(&Reverse(b.waited_ms()));
            by_time.then_with(|| by(|lock| lock.waiters))
        }
        SortBy::Waiters => by(|lock| lock.waiters),
        SortBy::Holders => by(|lock| lock.permits().0),
        SortBy::Age => by(|lock| lock.held_ms().unwrap_or(0)),
        SortBy::Lease => by(|lock| lock.lease_ms().unwrap_or(0)),
        SortBy::Key => a.key.cmp(&b.key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::HotKeys;

    fn lock(waiters: u64) -> Lock {
        Lock {
            waiters,
            ..Lock::free()
        }
    }

    fn locks(waiters: &[(&str, u64)]) -> Snapshot {
        let of = |(key, waiters): &(&str, u64)| (key.as_bytes().to_vec(), lock(*waiters));
        Snapshot {
            locks: waiters.iter().map(of).collect(),
            hot: HotKeys::new(),
            since: Instant::now(),
            is_complete: true,
        }
    }

    fn waited(waited_ms: u64) -> Hot {
        Hot {
            waited_ms,
            longest_wait_ms: waited_ms,
            waiters: 0,
            waits: 1,
            refused: 0,
            grants: 0,
            held_ms: 0,
        }
    }

    fn press(board: &mut Board, code: KeyCode) -> Action {
        board.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn keys(board: &Board) -> String {
        let keys = board
            .rows
            .iter()
            .map(|row| String::from_utf8_lossy(&row.key));
        keys.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_greatest_are_first_and_equal_ones_keep_their_places() {
        let mut board = Board::new(String::new(), SortBy::Waiters);
        board.show(Ok(locks(&[("a", 1), ("b", 3), ("c", 1), ("d", 2)])));
        assert_eq!(keys(&board), "b d a c");
        press(&mut board, KeyCode::Char('r'));
        assert_eq!(keys(&board), "a c d b");
        press(&mut board, KeyCode::Char('k'));
        assert_eq!(keys(&board), "a b c d");
    }

    #[test]
    fn the_longest_waits_are_first_and_without_any_the_most_waiters() {
        let mut board = Board::new(String::new(), SortBy::Waited);
        let mut snapshot = locks(&[("a", 1), ("b", 3), ("c", 0)]);
        board.show(Ok(locks(&[("a", 1), ("b", 3), ("c", 0)])));
        assert_eq!(keys(&board), "b a c");
        snapshot.hot.insert(b"c".to_vec(), waited(9));
        snapshot.hot.insert(b"a".to_vec(), waited(2));
        board.show(Ok(snapshot));
        assert_eq!(keys(&board), "c a b");
        press(&mut board, KeyCode::Char('w'));
        assert_eq!(keys(&board), "b a c");
        press(&mut board, KeyCode::Char('t'));
        assert_eq!(keys(&board), "c a b");
    }

    #[test]
    fn the_mark_goes_with_its_lock_and_stays_on_the_board() {
        let mut board = Board::new(String::new(), SortBy::Waiters);
        assert_eq!(board.marked(), None);
        board.show(Ok(locks(&[("a", 3), ("b", 2), ("c", 1)])));
        press(&mut board, KeyCode::Down);
        board.show(Ok(locks(&[("a", 3), ("b", 9), ("c", 1)])));
        assert_eq!(board.marked(), Some(0));
        press(&mut board, KeyCode::PageDown);
        assert_eq!(board.marked(), Some(2));
        board.show(Ok(locks(&[("a", 3)])));
        assert_eq!(board.marked(), Some(0));
        board.show(Ok(locks(&[])));
        assert_eq!(board.marked(), None);
    }

    #[test]
    fn what_was_known_stays_while_nobody_answers() {
        let mut board = Board::new(String::new(), SortBy::Waiters);
        board.show(Ok(locks(&[("a", 3)])));
        board.show(Err("away".to_owned()));
        assert_eq!(
            (keys(&board).as_str(), board.failure.as_deref()),
            ("a", Some("away"))
        );
        board.show(Ok(locks(&[])));
        assert_eq!(board.failure, None);
    }
}
