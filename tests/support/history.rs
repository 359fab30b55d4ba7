//! What clients held by their own clocks, and whether that could be.
//!
//! A client notes a hold from after it read its grant until before it sends its release, so what
//! is noted lies within what the server gave: where two notes overlap, two grants did.
//!
//! The moment of a grant is known less well: it lies between asking and reading the answer. One
//! grant is later than another for certain only where it was asked for after the other was read.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

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

/// One grant, as its client saw it, whether it could rely on it or not.
#[derive(Debug, Clone)]
pub struct Granted {
    /// What was granted.
    pub key: String,
    /// To whom.
    pub token: String,
    /// Its number.
    pub fence: i64,
    /// Before the command that brought it was sent.
    pub asked: Instant,
    /// After its answer was read.
    pub answered: Instant,
}

/// One client's wait for a key: from the first time it asked, however often and whichever server,
/// until it held the key or gave up.
#[derive(Debug, Clone)]
pub struct Wait {
    /// What was waited for.
    pub key: String,
    /// By whom.
    pub token: String,
    /// Before it first asked.
    pub asked: Instant,
    /// When the wait was over.
    pub answered: Instant,
}

/// A time in which no server took writes.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    /// Before the server was taken down.
    pub from: Instant,
    /// After a write had succeeded.
    pub to: Instant,
}

/// What was noted, apart for each key.
fn by_key<'a, T>(noted: &'a [T], key: impl Fn(&'a T) -> &'a str) -> Vec<Vec<&'a T>> {
    let mut by_key: HashMap<&str, Vec<&T>> = HashMap::new();
    for note in noted {
        by_key.entry(key(note)).or_default().push(note);
    }
    by_key.into_values().collect()
}

/// Asserts of each key that whoever asked after another's grant was read has got a greater fence,
/// and that no fence went to two tokens. That holds beyond what exclusion is promised for: also
/// for grants that were lost with their server.
#[track_caller]
pub fn assert_fences_rise(grants: &[Granted]) {
    for mut grants in by_key(grants, |grant| &grant.key) {
        let mut owners: HashMap<i64, &Granted> = HashMap::new();
        for grant in grants.iter() {
            let first = owners.entry(grant.fence).or_insert(grant);
            assert_eq!(first.token, grant.token, "{first:?} and {grant:?}");
        }
        let mut read = grants.clone();
        read.sort_by_key(|grant| grant.answered);
        grants.sort_by_key(|grant| grant.asked);
        let mut read = read.into_iter().peekable();
        let mut highest: Option<&Granted> = None;
        for grant in grants.iter() {
            while let Some(earlier) = read.next_if(|it| it.answered <= grant.asked) {
                highest = highest
                    .filter(|it| it.fence > earlier.fence)
                    .or(Some(earlier));
            }
            if let Some(earlier) = highest {
                assert!(grant.fence > earlier.fence, "{grant:?} after {earlier:?}");
            }
        }
    }
}

/// Asserts that nobody waited longer than `most`, not counting the outages. These must not overlap.
#[track_caller]
pub fn assert_nobody_stuck(waits: &[Wait], outages: &[Outage], most: Duration) {
    for wait in waits {
        let excused: Duration = outages
            .iter()
            .map(|outage| {
                let to = wait.answered.min(outage.to);
                to.saturating_duration_since(wait.asked.max(outage.from))
            })
            .sum();
        let waited = wait.answered - wait.asked;
        assert!(
            waited - excused <= most,
            "{wait:?} took {waited:?}, of which {excused:?} in an outage"
        );
    }
}

/// Asserts of each key that no exclusive hold overlapped any other, and that fences tell the order
/// of an exclusive hold and those before and after it.
#[track_caller]
pub fn assert_no_writer_overlaps(holds: &[Hold]) {
    for mut holds in by_key(holds, |hold| &hold.key) {
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

    /// Grants and waits of one history have one start.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, second: u64) -> Instant {
            self.0 + Duration::from_secs(second)
        }

        fn grant(&self, token: &str, fence: i64, asked: u64, answered: u64) -> Granted {
            Granted {
                key: "k".to_owned(),
                token: token.to_owned(),
                fence,
                asked: self.at(asked),
                answered: self.at(answered),
            }
        }

        fn wait(&self, asked: u64, answered: u64) -> Wait {
            Wait {
                key: "k".to_owned(),
                token: "a".to_owned(),
                asked: self.at(asked),
                answered: self.at(answered),
            }
        }

        fn outage(&self, from: u64, to: u64) -> Outage {
            Outage {
                from: self.at(from),
                to: self.at(to),
            }
        }
    }

    #[track_caller]
    fn assert_rejected(check: impl FnOnce() + std::panic::UnwindSafe, why: &str) {
        assert!(std::panic::catch_unwind(check).is_err(), "{why}");
    }

    #[test]
    fn it_sees_a_fence_that_falls_where_the_order_of_grants_is_certain() {
        let clock = Clock(Instant::now());
        let grant = |token, fence, asked, answered| clock.grant(token, fence, asked, answered);
        assert_fences_rise(&[
            grant("a", 1, 0, 1),
            grant("b", 2, 1, 2),
            // Asked before the other was read: either may have been first.
            grant("c", 5, 2, 6),
            grant("d", 4, 5, 7),
            grant("e", 6, 8, 9),
        ]);
        let elsewhere = Granted {
            key: "other".to_owned(),
            ..grant("b", 1, 2, 3)
        };
        assert_fences_rise(&[grant("a", 2, 0, 1), elsewhere]);
        let falling = [
            grant("a", 1, 0, 1),
            grant("b", 3, 2, 3),
            grant("c", 2, 4, 5),
        ];
        assert_rejected(move || assert_fences_rise(&falling), "a fence that falls");
        let hidden = [
            grant("a", 9, 0, 1),
            grant("b", 3, 0, 2),
            grant("c", 4, 3, 4),
        ];
        assert_rejected(
            move || assert_fences_rise(&hidden),
            "a fence below one but the last",
        );
        let twice = [grant("a", 1, 0, 3), grant("b", 1, 1, 2)];
        assert_rejected(move || assert_fences_rise(&twice), "one fence for two");
    }

    #[test]
    fn it_sees_who_was_stuck_while_a_server_was_there() {
        let clock = Clock(Instant::now());
        let most = Duration::from_secs(2);
        let outages = [clock.outage(10, 14), clock.outage(20, 30)];
        let fine = [
            clock.wait(0, 2),
            clock.wait(9, 15),
            clock.wait(11, 13),
            clock.wait(13, 16),
            clock.wait(13, 31),
        ];
        assert_nobody_stuck(&fine[..4], &outages, most);
        let through_both = fine[4].clone();
        assert_rejected(
            move || assert_nobody_stuck(&[through_both], &outages, most),
            "six seconds between two outages and one after",
        );
        let plain = clock.wait(0, 3);
        assert_rejected(
            move || assert_nobody_stuck(&[plain], &outages, most),
            "three seconds before any outage",
        );
        let after = clock.wait(12, 17);
        assert_rejected(
            move || assert_nobody_stuck(&[after], &outages, most),
            "three seconds after an outage",
        );
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
