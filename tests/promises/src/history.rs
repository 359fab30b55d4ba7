//! The clients' holds by their own clocks, and the promises about them.
//!
//! A client notes a hold from after it read its grant until before it sends its release. So a note
//! lies within the server's grant, and if two notes overlap, two grants did.
//!
//! The moment of a grant is known less well: it lies between the request and the read of the reply.
//! A grant is certainly later than another grant only if it was requested after the other was read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

pub use crate::state::Mode;
use crate::{require, Promise, Verdict};

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

/// One grant of a queue, with the place that it came from.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The token that got the grant.
    pub token: String,
    /// The fence of the grant.
    pub fence: i64,
    /// The first moment, in any unit, at which the token may have taken its place.
    pub queued_from: u64,
    /// The last such moment.
    pub queued_to: u64,
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

/// Checks for each key that a request sent after another grant was read got a greater fence. Also
/// checks that no fence went to two tokens. Both are more than exclusion, because they are also
/// true of grants that were lost with their server.
pub fn fences_rise(grants: &[Granted]) -> Verdict {
    by_key(grants, |grant| &grant.key)
        .into_iter()
        .try_for_each(fences_rise_at_key)
}

fn fences_rise_at_key(mut grants: Vec<&Granted>) -> Verdict {
    let mut owners: HashMap<i64, &Granted> = HashMap::new();
    for grant in grants.iter() {
        let first = owners.entry(grant.fence).or_insert(grant);
        require(first.token == grant.token, Promise::FencesRise, || {
            format!("{first:?} and {grant:?}")
        })?;
    }
    let mut read = grants.clone();
    read.sort_by_key(|grant| grant.answered);
    grants.sort_by_key(|grant| grant.asked);
    let mut read = read.into_iter().peekable();
    let mut highest: Option<&Granted> = None;
    for grant in grants {
        while let Some(earlier) = read.next_if(|it| it.answered <= grant.asked) {
            highest = highest
                .filter(|it| it.fence > earlier.fence)
                .or(Some(earlier));
        }
        let rises = highest.is_none_or(|earlier| grant.fence > earlier.fence);
        require(rises, Promise::FencesRise, || {
            format!("{grant:?} after {highest:?}")
        })?;
    }
    Ok(())
}

/// Checks that no turn was granted before a turn that had certainly queued earlier.
pub fn first_come_first_served(turns: &[Turn]) -> Verdict {
    let mut turns: Vec<&Turn> = turns.iter().collect();
    turns.sort_by_key(|turn| turn.fence);
    let mut latest: Option<&Turn> = None;
    for turn in turns {
        let is_overtaken = latest.is_some_and(|before| turn.queued_to < before.queued_from);
        require(!is_overtaken, Promise::FirstComeFirstServed, || {
            format!("{latest:?} was granted before {turn:?}")
        })?;
        latest = latest
            .filter(|it| it.queued_from >= turn.queued_from)
            .or(Some(turn));
    }
    Ok(())
}

/// Checks that no client waited longer than `most`, without the outages. Outages must not overlap.
pub fn nobody_stuck(waits: &[Wait], outages: &[Outage], most: Duration) -> Verdict {
    waits.iter().try_for_each(|wait| {
        let excused: Duration = outages
            .iter()
            .map(|outage| {
                let to = wait.answered.min(outage.to);
                to.saturating_duration_since(wait.asked.max(outage.from))
            })
            .sum();
        let waited = wait.answered - wait.asked;
        require(waited - excused <= most, Promise::NobodyStuck, || {
            format!("{wait:?} took {waited:?}, of which {excused:?} in an outage")
        })
    })
}

/// Checks for each key that no exclusive hold overlapped any other hold. Also checks that fences
/// give the order of an exclusive hold and the holds before and after it.
pub fn no_writer_overlaps(holds: &[Hold]) -> Verdict {
    by_key(holds, |hold| &hold.key)
        .into_iter()
        .try_for_each(no_writer_overlaps_at_key)
}

fn no_writer_overlaps_at_key(mut holds: Vec<&Hold>) -> Verdict {
    holds.sort_by_key(|hold| hold.from);
    let mut longest: Option<&Hold> = None;
    let mut last_writer: Option<&Hold> = None;
    let mut highest_fence = 0;
    for hold in holds {
        let (before, promise) = match (hold.mode, longest.map(|it| it.mode)) {
            (Mode::Exclusive, Some(Mode::Exclusive)) => (longest, Promise::OneExclusive),
            (Mode::Exclusive, _) => (longest, Promise::SharedApart),
            (Mode::Shared, _) => (last_writer, Promise::SharedApart),
        };
        let is_apart = before.is_none_or(|before| before.to <= hold.from);
        require(is_apart, promise, || {
            format!("{before:?} overlaps {hold:?}")
        })?;
        let rises = match hold.mode {
            Mode::Exclusive => hold.fence > highest_fence,
            // A writer that turned reader keeps its fence.
            Mode::Shared => last_writer.is_none_or(|writer| {
                hold.fence > writer.fence
                    || (hold.fence == writer.fence && hold.token == writer.token)
            }),
        };
        require(rises, Promise::FencesRise, || {
            format!("{hold:?} after {highest_fence}, {last_writer:?}")
        })?;
        if hold.mode == Mode::Exclusive {
            last_writer = Some(hold);
        }
        highest_fence = highest_fence.max(hold.fence);
        longest = longest.filter(|it| it.to >= hold.to).or(Some(hold));
    }
    Ok(())
}

/// Checks that there were never more holds at the same time than `limit`.
pub fn within_limit(holds: &[Hold], limit: usize) -> Verdict {
    let most = most_at_once(holds);
    require(most <= limit, Promise::Limit, || {
        format!("{most} holds at once, of {limit}")
    })
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
mod tests {
    use super::*;
    use crate::state::tests::assert_broken;

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

    fn turn(queued_from: u64, queued_to: u64, fence: i64) -> Turn {
        Turn {
            token: fence.to_string(),
            fence,
            queued_from,
            queued_to,
        }
    }

    #[test]
    fn it_sees_a_fence_that_falls_where_the_order_of_grants_is_certain() {
        let clock = Clock(Instant::now());
        let grant = |token, fence, asked, answered| clock.grant(token, fence, asked, answered);
        let certain = [
            grant("a", 1, 0, 1),
            grant("b", 2, 1, 2),
            // d was requested before c was read, so either grant may have been first.
            grant("c", 5, 2, 6),
            grant("d", 4, 5, 7),
            grant("e", 6, 8, 9),
        ];
        assert_eq!(fences_rise(&certain), Ok(()));
        let elsewhere = Granted {
            key: "other".to_owned(),
            ..grant("b", 1, 2, 3)
        };
        assert_eq!(fences_rise(&[grant("a", 2, 0, 1), elsewhere]), Ok(()));
        let falling = [
            grant("a", 1, 0, 1),
            grant("b", 3, 2, 3),
            grant("c", 2, 4, 5),
        ];
        assert_broken(fences_rise(&falling), Promise::FencesRise);
        let hidden = [
            grant("a", 9, 0, 1),
            grant("b", 3, 0, 2),
            grant("c", 4, 3, 4),
        ];
        // A fence below a grant before the last.
        assert_broken(fences_rise(&hidden), Promise::FencesRise);
        let twice = [grant("a", 1, 0, 3), grant("b", 1, 1, 2)];
        assert_broken(fences_rise(&twice), Promise::FencesRise);
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
        assert_eq!(nobody_stuck(&fine[..4], &outages, most), Ok(()));
        let through_both = nobody_stuck(std::slice::from_ref(&fine[4]), &outages, most);
        assert_broken(through_both, Promise::NobodyStuck);
        let plain = nobody_stuck(&[clock.wait(0, 3)], &outages, most);
        assert_broken(plain, Promise::NobodyStuck);
        let after = nobody_stuck(&[clock.wait(12, 17)], &outages, most);
        assert_broken(after, Promise::NobodyStuck);
    }

    #[test]
    fn it_tells_sound_histories_from_others() {
        use Mode::{Exclusive as X, Shared as S};
        let sound = [
            hold("a", X, 1, 0, 1),
            hold("b", S, 2, 2, 5),
            hold("c", S, 3, 3, 4),
            hold("d", X, 4, 6, 7),
            hold("d", S, 4, 7, 8),
        ];
        assert_eq!(no_writer_overlaps(&sound), Ok(()));
        let two_writers = [hold("a", X, 1, 0, 3), hold("b", X, 2, 2, 4)];
        assert_broken(no_writer_overlaps(&two_writers), Promise::OneExclusive);
        let reader_beside = [hold("a", X, 1, 0, 3), hold("b", S, 2, 2, 4)];
        assert_broken(no_writer_overlaps(&reader_beside), Promise::SharedApart);
        let beside_the_first = [
            hold("a", S, 1, 0, 9),
            hold("b", S, 2, 1, 2),
            hold("c", X, 3, 4, 5),
        ];
        assert_broken(no_writer_overlaps(&beside_the_first), Promise::SharedApart);
        let falling = [hold("a", X, 2, 0, 1), hold("b", X, 1, 2, 3)];
        assert_broken(no_writer_overlaps(&falling), Promise::FencesRise);
        let given_twice = [hold("a", X, 1, 0, 1), hold("b", S, 1, 2, 3)];
        assert_broken(no_writer_overlaps(&given_twice), Promise::FencesRise);
    }

    #[test]
    fn it_sees_a_turn_granted_before_one_that_queued_earlier() {
        let in_order = [turn(1, 1, 10), turn(2, 9, 12), turn(3, 3, 11)];
        assert_eq!(first_come_first_served(&in_order), Ok(()));
        let overtaken = [turn(5, 9, 10), turn(1, 4, 11)];
        let hidden = [turn(5, 9, 10), turn(3, 9, 11), turn(1, 4, 12)];
        for turns in [&overtaken[..], &hidden] {
            assert_broken(
                first_come_first_served(turns),
                Promise::FirstComeFirstServed,
            );
        }
    }

    #[test]
    fn it_counts_how_many_held_at_once() {
        let shared = |from, to| hold("a", Mode::Shared, 1, from, to);
        assert_eq!(most_at_once(&[]), 0);
        let three = [shared(0, 9), shared(1, 4), shared(5, 8), shared(6, 7)];
        assert_eq!(most_at_once(&three), 3);
        assert_eq!(within_limit(&three, 3), Ok(()));
        assert_broken(within_limit(&three, 2), Promise::Limit);
    }
}
