//! What clients held by their own clocks, and whether that could be.
//!
//! A client notes a hold from after it read its grant until before it sends its release, so what
//! is noted lies within what the server gave: where two notes overlap, two grants did.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::HashMap;
use std::time::Instant;

/// How a key was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Beside nobody.
    Exclusive,
    /// Beside other shared holders.
    Shared,
}

/// One client's hold of one key.
#[derive(Debug, Clone)]
pub struct Hold {
    /// What was held.
    pub key: String,
    /// By whom.
    pub token: String,
    /// How.
    pub mode: Mode,
    /// The number of the grant.
    pub fence: i64,
    /// After the grant was read.
    pub from: Instant,
    /// Before the release was sent.
    pub to: Instant,
}

/// Asserts of each key that no exclusive hold overlapped any other, and that fences tell the order
/// of an exclusive hold and those before and after it.
#[track_caller]
pub fn assert_no_writer_overlaps(holds: &[Hold]) {
    let mut by_key: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds {
        by_key.entry(&hold.key).or_default().push(hold);
    }
    for holds in by_key.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        let mut longest: Option<&Hold> = None;
        let mut last_writer: Option<&Hold> = None;
        let mut highest_fence = 0;
        for hold in holds.iter() {
            let before = match hold.mode {
                Mode::Exclusive => longest,
                Mode::Shared => last_writer,
            };
            if let Some(before) = before {
                assert!(before.to <= hold.from, "{before:?} overlaps {hold:?}");
            }
            match hold.mode {
                Mode::Exclusive => {
                    assert!(hold.fence > highest_fence, "{hold:?} after {highest_fence}");
                    last_writer = Some(hold);
                }
                // A writer that turned reader keeps its fence.
                Mode::Shared => assert!(
                    last_writer.is_none_or(|writer| hold.fence > writer.fence
                        || (hold.fence == writer.fence && hold.token == writer.token)),
                    "{hold:?} after {last_writer:?}"
                ),
            }
            highest_fence = highest_fence.max(hold.fence);
            longest = longest.filter(|it| it.to >= hold.to).or(Some(hold));
        }
    }
}

/// The most holds that there were at the same time.
pub fn most_at_once(holds: &[Hold]) -> usize {
    let starts = holds.iter().map(|hold| (hold.from, 1));
    let ends = holds.iter().map(|hold| (hold.to, -1));
    let mut changes: Vec<(Instant, i64)> = starts.chain(ends).collect();
    // Of those at the same instant ends come first: they don't overlap.
    changes.sort_unstable();
    let mut now = 0;
    let counts = changes.iter().map(|(_, change)| {
        now += change;
        now
    });
    counts
        .max()
        .map_or(0, |most| usize::try_from(most).expect("a count"))
}

mod of_the_checker_itself {
    use std::time::Duration;

    use super::*;

    fn hold(token: &str, mode: Mode, fence: i64, from_ms: u64, to_ms: u64) -> Hold {
        let start = Instant::now();
        let at = |ms| start.checked_add(Duration::from_millis(ms)).unwrap();
        Hold {
            key: "k".to_owned(),
            token: token.to_owned(),
            mode,
            fence,
            from: at(from_ms * 1_000),
            to: at(to_ms * 1_000),
        }
    }

    #[track_caller]
    fn assert_objects(holds: &[Hold], why: &str) {
        let holds = holds.to_vec();
        let verdict = std::panic::catch_unwind(move || assert_no_writer_overlaps(&holds));
        assert!(verdict.is_err(), "{why}");
    }

    #[test]
    fn it_tells_sound_histories_from_others() {
        use Mode::{Exclusive as X, Shared as S};
        assert_no_writer_overlaps(&[
            hold("a", X, 1, 0, 1),
            hold("b", S, 2, 2, 5),
            hold("c", S, 3, 3, 4),
            hold("d", X, 4, 6, 7),
            hold("d", S, 4, 7, 8),
        ]);
        assert_objects(
            &[hold("a", X, 1, 0, 3), hold("b", X, 2, 2, 4)],
            "two writers at once",
        );
        assert_objects(
            &[hold("a", X, 1, 0, 3), hold("b", S, 2, 2, 4)],
            "a reader beside a writer",
        );
        assert_objects(
            &[
                hold("a", S, 1, 0, 9),
                hold("b", S, 2, 1, 2),
                hold("c", X, 3, 4, 5),
            ],
            "a writer beside the first of two readers",
        );
        assert_objects(
            &[hold("a", X, 2, 0, 1), hold("b", X, 1, 2, 3)],
            "a fence that falls",
        );
        assert_objects(
            &[hold("a", X, 1, 0, 1), hold("b", S, 1, 2, 3)],
            "a fence given twice",
        );
    }

    #[test]
    fn it_counts_how_many_held_at_once() {
        let shared = |from, to| hold("a", Mode::Shared, 1, from, to);
        assert_eq!(most_at_once(&[]), 0);
        assert_eq!(
            most_at_once(&[shared(0, 9), shared(1, 4), shared(5, 8), shared(6, 7)]),
            3
        );
    }
}
