//! Leave marks: a token that has left a key by `RELEASE ... LEAVE` is marked there. Until the mark ends,
//! the token's late commands are turned away.
//!
//! 1. A mark is a keyed hash of database, key and token, so its size does not depend on theirs. The
//!    key is secret: a client that could choose tokens with one hash could turn others away.
//! 2. The newest mark is the last. Beyond a limit the oldest mark goes.
//! 3. A mark that has ended no longer counts. A sweep removes it within ten seconds: a sweep begins
//!    every five, and takes less than five.

use std::hash::Hasher;

use foldhash::fast::RandomState;
use hashlink::linked_hash_map::{CursorMut, Entry};
use hashlink::LinkedHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::budget::MOST_SWEPT;
use crate::values::name::{Name, Names};
use crate::values::time::has_passed;
use crate::values::token::Token;

/// The time in ms between the beginnings of two sweeps.
const SWEEP_MS: u64 = 5_000;

/// The hash of a token at a name.
type Mark = (u64, u64);

/// The end of each mark on the steady clock in ms. The mark of the last LEAVE is the last.
type Marks = LinkedHashMap<Mark, u64, RandomState>;

/// The marks of tokens that have left names.
#[derive(Debug, Default)]
pub struct LeaveMarks {
    hash_key: [u8; 16],
    marks: Marks,
    /// The most marks since the map was shrunk last.
    most_len: usize,
    /// The start of the next sweep, or the time of its next part, on the steady clock in ms.
    sweep_ms: u64,
    /// The start of the current sweep.
    swept_since_ms: u64,
    /// The mark that the sweep looks at next; `None`: the oldest.
    next_swept: Option<Mark>,
}

impl LeaveMarks {
    /// Sets the secret key of the hashes. All marks end.
    pub fn set_hash_key(&mut self, hash_key: [u8; 16]) {
        *self = Self {
            hash_key,
            ..Self::default()
        };
    }

    /// Returns the number of marks in memory. Includes those that have ended since the last sweep.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Returns true if no mark is in memory.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Marks a token as having left a name until `end_ms` on the steady clock, or longer if its older
    /// mark ends later. `most` is the most marks to keep; 0: no limit.
    pub fn insert(&mut self, name: &Name, token: &Token, end_ms: u64, most: usize, now_ms: u64) {
        if self.is_empty() {
            self.sweep_ms = now_ms.saturating_add(SWEEP_MS);
        }
        let mark = self.mark(name, token);
        let older_ms = self.remove(mark);
        let end_ms = older_ms.map_or(end_ms, |older_ms| older_ms.max(end_ms));
        self.marks.insert(mark, end_ms);
        self.most_len = self.most_len.max(self.len());
        while most > 0 && self.len() > most {
            let Some(oldest) = self.oldest() else { break };
            self.remove(oldest);
        }
    }

    /// Returns true if a token has left any of these names, by a mark that has not ended.
    pub fn contains_any(&self, names: &Names, token: &Token, now_ms: u64) -> bool {
        let mut names = names.iter();
        !self.is_empty() && names.any(|name| self.contains(name, token, now_ms))
    }

    /// Returns true if a token has left a name, by a mark that has not ended.
    fn contains(&self, name: &Name, token: &Token, now_ms: u64) -> bool {
        let end_ms = self.marks.get(&self.mark(name, token));
        end_ms.is_some_and(|end_ms| !has_passed(*end_ms, now_ms))
    }

    /// Returns when the next part of a sweep is due, on the steady clock in ms.
    #[inline(always)]
    pub fn next_sweep_ms(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.sweep_ms)
    }

    /// Removes marks that have ended, if a sweep is due. Looks at [`MOST_SWEPT`] marks at most and
    /// leaves the others to the next part, which is due in the next ms.
    pub fn sweep(&mut self, now_ms: u64) {
        if self.next_sweep_ms().is_none_or(|ms| ms > now_ms) {
            return;
        }
        if self.next_swept.is_none() {
            self.swept_since_ms = now_ms;
        }
        let ended = self.look_at_next(now_ms);
        for mark in ended {
            self.marks.remove(&mark);
        }
        self.sweep_ms = match self.next_swept {
            Some(_) => now_ms.saturating_add(1),
            None => self.swept_since_ms.saturating_add(SWEEP_MS).max(now_ms + 1),
        };
        if self.next_swept.is_none() && self.len() < self.most_len / 2 {
            // The map keeps the memory of removed marks.
            self.marks.shrink_to_fit();
            self.most_len = self.len();
        }
    }

    /// Moves the sweep on by [`MOST_SWEPT`] marks. Returns those that have ended.
    fn look_at_next(&mut self, now_ms: u64) -> Vec<Mark> {
        let mut ended = Vec::new();
        let first = self.next_swept.take().or_else(|| self.oldest());
        let Some(mut cursor) = first.and_then(|first| cursor_at(&mut self.marks, first)) else {
            return ended;
        };
        for _ in 0..MOST_SWEPT {
            let Some((mark, end_ms)) = cursor.current() else {
                break;
            };
            if has_passed(*end_ms, now_ms) {
                ended.push(*mark);
            }
            cursor.move_next();
        }
        self.next_swept = cursor.current().map(|(mark, _)| *mark);
        ended
    }

    fn oldest(&self) -> Option<Mark> {
        self.marks.front().map(|(mark, _)| *mark)
    }

    /// Removes a mark. Returns its end, if there was one.
    fn remove(&mut self, mark: Mark) -> Option<u64> {
        if self.next_swept == Some(mark) {
            self.next_swept = cursor_at(&mut self.marks, mark).and_then(|mut cursor| {
                cursor.move_next();
                cursor.current().map(|(next, _)| *next)
            });
        }
        self.marks.remove(&mark)
    }

    /// Returns the mark of a token at a name.
    fn mark(&self, name: &Name, token: &Token) -> Mark {
        let mut hasher = SipHasher24::new_with_key(&self.hash_key);
        hasher.write_i32(name.db);
        hasher.write_usize(name.key().len());
        hasher.write(name.key());
        hasher.write(token.as_bytes());
        hasher.finish128().as_u64()
    }
}

/// Returns a cursor at a mark, if the mark is in the map.
fn cursor_at(marks: &mut Marks, mark: Mark) -> Option<CursorMut<'_, Mark, u64, RandomState>> {
    match marks.entry(mark) {
        Entry::Occupied(entry) => Some(entry.cursor_mut()),
        Entry::Vacant(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::token::Token;

    const NOW_MS: u64 = 77;

    fn name(key: &str) -> Name {
        Name::new(0, key.as_bytes())
    }

    fn token(number: usize) -> Token {
        Token::new(number.to_string().as_bytes()).expect("a token")
    }

    #[test]
    fn a_mark_ends_after_its_last_millisecond() {
        let mut marks = LeaveMarks::default();
        marks.insert(&name("k"), &token(1), 100, 0, NOW_MS);
        assert!(marks.contains(&name("k"), &token(1), 100));
        assert!(!marks.contains(&name("k"), &token(1), 101));
        for (other_name, other) in [(name("j"), 1), (name("k"), 2), (Name::new(1, b"k"), 1)] {
            assert!(!marks.contains(&other_name, &token(other), 100));
        }
    }

    #[test]
    fn a_key_and_a_token_that_share_bytes_differ_from_others() {
        let mut marks = LeaveMarks::default();
        let ab = Token::new(b"ab").expect("a token");
        marks.insert(&name("k"), &ab, 100, 0, NOW_MS);
        let b = Token::new(b"b").expect("a token");
        assert!(!marks.contains(&name("ka"), &b, 100));
    }

    #[test]
    fn a_second_mark_is_the_newest_and_never_ends_earlier() {
        let mut marks = LeaveMarks::default();
        for (number, end_ms) in [(1, 200), (2, 200), (1, 100)] {
            marks.insert(&name("k"), &token(number), end_ms, 2, NOW_MS);
        }
        assert!(marks.contains(&name("k"), &token(1), 200));
        marks.insert(&name("k"), &token(3), 200, 2, NOW_MS);
        assert!(!marks.contains(&name("k"), &token(2), 100), "the oldest");
        assert!(marks.contains(&name("k"), &token(1), 100));
        marks.insert(&name("k"), &token(3), 200, 1, NOW_MS);
        assert_eq!(marks.len(), 1);
    }

    #[test]
    fn hashes_depend_on_the_key() {
        let mut marks = [LeaveMarks::default(), LeaveMarks::default()];
        marks[1].set_hash_key([7; 16]);
        let [one, other] = marks.map(|marks| marks.mark(&name("k"), &token(1)));
        assert_ne!(one, other);
    }

    /// Sweeps until none is due by `until_ms`, and inserts or moves a mark between two parts.
    fn sweep_all(
        marks: &mut LeaveMarks,
        until_ms: u64,
        mut between: impl FnMut(&mut LeaveMarks, u64),
    ) {
        while let Some(now_ms) = marks.next_sweep_ms().filter(|ms| *ms <= until_ms) {
            marks.sweep(now_ms);
            between(marks, now_ms);
        }
    }

    #[test]
    fn ended_marks_are_removed_within_ten_seconds_however_marks_change_meanwhile() {
        let count = 3 * MOST_SWEPT;
        let mut marks = LeaveMarks::default();
        for number in 0..count {
            let end_ms = if number % 3 == 0 { 90_000 } else { 4_000 };
            marks.insert(&name("k"), &token(number), end_ms, count, NOW_MS);
        }
        sweep_all(&mut marks, 14_000, |marks, now_ms| {
            // The mark that the sweep looks at next moves to the end.
            if let Some(next) = marks.next_swept {
                let end_ms = marks.remove(next).expect("a mark");
                marks.marks.insert(next, end_ms);
            }
            if now_ms < 6_000 {
                let new = token(now_ms as usize);
                marks.insert(&name("new"), &new, 6_000, count, now_ms);
            }
        });
        let lasting =
            (0..count).filter(|number| marks.contains(&name("k"), &token(*number), 14_000));
        assert_eq!(lasting.count(), count / 3);
        assert_eq!(marks.len(), count / 3);
        sweep_all(&mut marks, 100_000, |_, _| ());
        assert!(marks.is_empty());
        assert_eq!(marks.next_sweep_ms(), None);
    }

    #[test]
    fn the_oldest_go_while_a_sweep_is_at_them() {
        let mut marks = LeaveMarks::default();
        for number in 0..2 * MOST_SWEPT {
            marks.insert(&name("k"), &token(number), 90_000, 0, NOW_MS);
        }
        marks.sweep(NOW_MS + SWEEP_MS);
        marks.insert(&name("k"), &token(0), 90_000, 1, NOW_MS);
        assert_eq!(marks.len(), 1);
        let next = marks.next_swept.expect("a mark");
        assert!(marks.marks.contains_key(&next));
        assert!(marks.contains(&name("k"), &token(0), NOW_MS));
    }

    /// A sweep begins 5 s after the first mark, and the next one 5 s after its beginning.
    #[test]
    fn sweeps_begin_every_five_seconds() {
        let mut marks = LeaveMarks::default();
        marks.insert(&name("k"), &token(1), 90_000, 0, 100);
        for (now_ms, next_ms) in [(5_099, 5_100), (5_100, 10_100), (10_300, 15_300)] {
            marks.sweep(now_ms);
            assert_eq!(marks.next_sweep_ms(), Some(next_ms), "at {now_ms}");
        }
        for number in 0..MOST_SWEPT {
            marks.insert(&name("j"), &token(number), 90_000, 0, 15_000);
        }
        marks.sweep(15_300);
        assert_eq!(marks.next_sweep_ms(), Some(15_301), "the rest of the sweep");
        marks.sweep(15_301);
        assert_eq!(marks.next_sweep_ms(), Some(20_300));
        marks.sweep(30_000);
        marks.sweep(40_000);
        assert_eq!(
            marks.next_sweep_ms(),
            Some(40_001),
            "a sweep that took long"
        );
    }

    /// The map is shrunk when fewer than half of the marks are left.
    #[test]
    fn the_memory_of_marks_that_have_ended_is_freed() {
        for (lasting, is_freed) in [(499, true), (500, false), (501, false)] {
            let mut marks = LeaveMarks::default();
            for number in 0..1_000 {
                let end_ms = if number < lasting { 90_000 } else { 1_000 };
                marks.insert(&name("k"), &token(number), end_ms, 0, NOW_MS);
            }
            sweep_all(&mut marks, 9_000, |_, _| ());
            assert_eq!(marks.len(), lasting);
            let most_len = if is_freed { lasting } else { 1_000 };
            assert_eq!(marks.most_len, most_len, "{lasting} left");
        }
    }
}
