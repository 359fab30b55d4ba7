//! The clients' holds by their own clocks, and checks that such holds are possible.
//!
//! A client notes a hold from after it read its grant until before it sends its release. So a note
//! lies within the server's grant, and if two notes overlap, two grants did.
//!
//! The moment of a grant is known less well: it lies between the request and the read of the reply.
//! A grant is certainly later than another grant only if it was requested after the other was read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::unix_time_us;

/// The mode of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The key has no other holder.
    Exclusive,
    /// The key may have other shared holders.
    Shared,
}

/// One client's hold of one key.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The key that was held.
    pub key: String,
    /// The holder's token.
    pub token: String,
    /// The mode of the hold.
    pub mode: Mode,
    /// The fence of the grant.
    pub fence: i64,
    /// The time after the grant was read.
    pub from: Instant,
    /// The time before the release was sent.
    pub to: Instant,
}

/// One grant that its client saw, also if the client could not rely on it.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The key that was granted.
    pub key: String,
    /// The token that got the grant.
    pub token: String,
    /// The fence of the grant.
    pub fence: i64,
    /// The time before the command that returned the grant was sent.
    pub asked: Instant,
    /// The time after the command's reply was read.
    pub answered: Instant,
}

impl Granted {
    /// Returns the time at which the client must take the lease for over, by the clock of this
    /// machine. It counts from the fence, which is the time of the grant, because the client may
    /// read the reply long after the grant.
    pub fn lease_over(&self, lease_ms: u64) -> Instant {
        let age_us = u64::try_from(unix_time_us() - self.fence).unwrap_or(0);
        let lease = Duration::from_millis(lease_ms * 9 / 10);
        Instant::now() - Duration::from_micros(age_us) + lease
    }
}

/// One client's wait for a key: from its first request until it held the key or gave up. It may
/// have sent several requests to several servers.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The key that was waited for.
    pub key: String,
    /// The waiter's token.
    pub token: String,
    /// The time before the first request was sent.
    pub asked: Instant,
    /// The time when the wait was over.
    pub answered: Instant,
}

/// A time in which no server took writes.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    /// The time before the server was taken down.
    pub from: Instant,
    /// The time after a write had succeeded.
    pub to: Instant,
}

/// Returns the notes of each key.
fn by_key<'a, T>(noted: &'a [T], key: impl Fn(&'a T) -> &'a str) -> Vec<Vec<&'a T>> {
    let mut by_key: HashMap<&str, Vec<&T>> = HashMap::new();
    for note in noted {
        by_key.entry(key(note)).or_default().push(note);
    }
    by_key.into_values().collect()
}

/// Asserts for each key that a request sent after another grant was read got a greater fence. Also
/// asserts that no fence went to two tokens. Both are more than exclusion, because they are also
/// true of grants that were lost with their server.
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

/// Asserts that no client waited longer than `most`, without the outages. Outages must not overlap.
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

/// Asserts for each key that no exclusive hold overlapped any other hold. Also asserts that fences
/// give the order of an exclusive hold and the holds before and after it.
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

/// Returns the most holds that there were at the same time.
pub fn most_at_once(holds: &[Hold]) -> usize {
    let starts = holds.iter().map(|hold| (hold.from, 1));
    let ends = holds.iter().map(|hold| (hold.to, -1));
    let mut changes: Vec<(Instant, i64)> = starts.chain(ends).collect();
    // At the same instant ends come first, because such holds don't overlap.
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

#[cfg(test)]
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

    /// The one start of the grants and waits of one history.
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
            // d was requested before c was read, so either grant may have been first.
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
            "a fence below a grant before the last",
        );
        let twice = [grant("a", 1, 0, 3), grant("b", 1, 1, 2)];
        assert_rejected(move || assert_fences_rise(&twice), "one fence, two tokens");
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
