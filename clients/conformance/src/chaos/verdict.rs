//! The observations of the clients, and the promises that they break.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use redis_lock_promises::history::{fences_rise, no_writer_overlaps, within_limit, Granted, Hold};

use super::scope::{Ground, Holds, Limit, Pause};
use super::seat::{is_replicated, PERMITS};

/// The times in which the process of each client didn't run.
pub type Pauses = BTreeMap<&'static str, Vec<Pause>>;

/// All that was seen so far.
#[derive(Default)]
pub struct Seen(Mutex<Notes>);

#[derive(Default)]
struct Notes {
    outcomes: BTreeMap<String, usize>,
    by_client: BTreeMap<&'static str, usize>,
    grants: Vec<Granted>,
    holds: Vec<Noted>,
    hangs: Vec<String>,
}

/// A hold of a client.
struct Noted {
    client: &'static str,
    ground: Ground,
    asked: Instant,
    hold: Hold,
}

impl Seen {
    /// Counts a reply of a client.
    pub fn count(&self, client: &'static str, outcome: &str) {
        let mut notes = self.notes();
        *notes.outcomes.entry(outcome.to_owned()).or_default() += 1;
        *notes.by_client.entry(client).or_default() += 1;
    }

    /// Adds the grants of an acquire.
    pub fn grants(&self, grants: impl Iterator<Item = Granted>) {
        self.notes().grants.extend(grants);
    }

    /// Adds the holds of an acquire.
    pub fn holds(
        &self,
        client: &'static str,
        (ground, asked): (Ground, Instant),
        holds: impl Iterator<Item = Hold>,
    ) {
        let noted = holds.map(|hold| Noted {
            client,
            ground,
            asked,
            hold,
        });
        self.notes().holds.extend(noted);
    }

    /// Records that a call didn't return, unless its process didn't run.
    pub fn hang(&self, client: &str, call: &str, is_excused: bool) {
        if !is_excused {
            self.notes().hangs.push(format!("{client}: {call}"));
        }
    }

    /// Returns a grant with REPLICAS that came while no replica could acknowledge anything.
    pub fn unacknowledged(&self, cuts: &[(Instant, Instant)]) -> Option<String> {
        let is_within = |grant: &&Granted| {
            let mut within = cuts.iter();
            within.any(|(from, to)| *from <= grant.asked && grant.answered <= *to)
        };
        let notes = self.notes();
        let mut replicated = notes.grants.iter().filter(|it| is_replicated(&it.key));
        replicated.find(is_within).map(|it| format!("{it:?}"))
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fences of the grants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fences {
    /// They rise.
    Rise,
    /// Each master counts for itself, so they tell nothing.
    OfEachMaster,
}

/// The promises that were broken, and the counts of what was seen.
pub struct Verdict {
    notes: Notes,
    /// The number of holds that the promises cover, until their ends or for a while.
    judged: usize,
    /// The holds that the promises don't cover from some moment on, by the reason.
    out_of_scope: BTreeMap<&'static str, usize>,
    broken: Vec<String>,
}

impl Verdict {
    /// Judges what was seen.
    ///
    /// A hold counts until its process stopped or died, and until a limit of the promises' scope. During
    /// a failover grants may be lost, and two primaries may grant, so a grant that came meanwhile has no
    /// fence that counts. A session's connection that is cut ends the grant at once, and most libraries
    /// learn of that by the next renewal.
    pub fn of(seen: Seen, limits: &[Limit], pauses: &Pauses, fences: Fences) -> Verdict {
        let notes = seen.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut verdict = Verdict {
            notes,
            judged: 0,
            out_of_scope: BTreeMap::new(),
            broken: Vec::new(),
        };
        let mut holds = verdict.covered_holds(limits, pauses);
        let is_covered = |grant: &&Granted| {
            let mut losses = limits.iter().filter(|it| it.of == Holds::Unreplicated);
            !losses.any(|it| grant.answered >= it.time.0 && grant.asked <= it.time.1)
        };
        let grants = verdict.notes.grants.iter().filter(is_covered);
        let mut grants: Vec<Granted> = grants.cloned().collect();
        if fences == Fences::OfEachMaster {
            number(&mut holds);
            grants.clear();
        }
        let (permits, others): (Vec<Hold>, Vec<Hold>) =
            holds.into_iter().partition(|hold| hold.key == "{t}permits");
        let judged = [
            no_writer_overlaps(&others),
            within_limit(&permits, PERMITS),
            fences_rise(&grants),
        ];
        let broken = judged.into_iter().filter_map(Result::err);
        verdict.broken.extend(broken.map(|it| format!("{it:?}")));
        let hangs = verdict.notes.hangs.iter();
        verdict
            .broken
            .extend(hangs.map(|call| format!("no return | {call}")));
        let silent = pauses.keys();
        let silent = silent.filter(|client| !verdict.notes.by_client.contains_key(*client));
        let silent: Vec<String> = silent
            .map(|client| format!("no reply | {client}"))
            .collect();
        verdict.broken.extend(silent);
        verdict
    }

    fn covered_holds(&mut self, limits: &[Limit], pauses: &Pauses) -> Vec<Hold> {
        let mut covered = Vec::new();
        for noted in &self.notes.holds {
            let hold = &noted.hold;
            let stopped = pauses.get(noted.client);
            let stopped = stopped.and_then(|pauses| first_within(pauses, hold));
            let time = (noted.asked, hold.to);
            let limited = limits.iter().filter_map(|limit| {
                let end = limit.end_of(noted.ground, time)?;
                Some((end, limit.reason))
            });
            let stopped = stopped.map(|at| (at, "its process stopped or died"));
            let first = limited.chain(stopped).min();
            let mut hold = hold.clone();
            if let Some((end, reason)) = first.filter(|(end, _)| *end < hold.to) {
                *self.out_of_scope.entry(reason).or_default() += 1;
                hold.to = end;
            }
            if hold.to > hold.from {
                covered.push(hold);
            }
        }
        self.judged = covered.len();
        covered
    }

    /// Adds a promise that is broken if there is something that shows it.
    pub fn add(&mut self, what: &str, shown: Option<String>) {
        self.broken
            .extend(shown.map(|shown| format!("{what}: {shown}")));
    }

    /// Returns true if no promise was broken.
    pub fn is_kept(&self) -> bool {
        self.broken.is_empty()
    }
}

/// Gives holds of several masters, which have no common fence, the order of their beginnings.
fn number(holds: &mut [Hold]) {
    holds.sort_by_key(|hold| hold.from);
    for (fence, hold) in (1..).zip(holds) {
        hold.fence = fence;
    }
}

/// Returns the beginning of the first time that touches a hold.
fn first_within(times: &[Pause], hold: &Hold) -> Option<Instant> {
    let touches = times
        .iter()
        .filter(|(from, to)| *from <= hold.to && *to >= hold.from);
    touches.map(|(from, _)| *from).min()
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = |f: &mut fmt::Formatter<'_>, title: &str, counts: Vec<(&str, usize)>| {
            let all: Vec<String> = counts
                .iter()
                .map(|(it, count)| format!("{it} {count}"))
                .collect();
            writeln!(f, "  {title}: {}", all.join(", "))
        };
        let operations: usize = self.notes.outcomes.values().sum();
        writeln!(f, "  {operations} operations, {} holds judged", self.judged)?;
        let outcomes = self.notes.outcomes.iter();
        counts(
            f,
            "replies",
            outcomes.map(|(it, count)| (it.as_str(), *count)).collect(),
        )?;
        let by_client = self.notes.by_client.iter();
        counts(
            f,
            "by client",
            by_client.map(|(it, count)| (*it, *count)).collect(),
        )?;
        let out_of_scope = self.out_of_scope.iter();
        let out_of_scope = out_of_scope.map(|(it, count)| (*it, *count)).collect();
        counts(f, "holds that end out of scope", out_of_scope)?;
        writeln!(f, "  promises broken: {}", self.broken.len())?;
        self.broken
            .iter()
            .try_for_each(|it| writeln!(f, "    {it}"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis_lock_promises::history::Mode;

    use super::*;

    /// The one start of a history.
    struct Clock(Instant);

    impl Clock {
        fn at(&self, second: u64) -> Instant {
            self.0 + Duration::from_secs(second)
        }

        /// Adds a grant of a client, and its hold from one second to another one.
        fn held(&self, seen: &Seen, client: &'static str, fence: i64, (from, to): (u64, u64)) {
            let (key, token) = ("k".to_owned(), client.to_owned());
            seen.count(client, "granted");
            let (asked, answered) = (self.at(from - 1), self.at(from));
            seen.grants(
                [Granted {
                    key: key.clone(),
                    token: token.clone(),
                    fence,
                    asked,
                    answered,
                }]
                .into_iter(),
            );
            let (mode, from, to) = (Mode::Exclusive, self.at(from), self.at(to));
            seen.holds(
                client,
                (Ground::Lease, asked),
                [Hold {
                    key,
                    token,
                    mode,
                    fence,
                    from,
                    to,
                }]
                .into_iter(),
            );
        }
    }

    fn pauses(of_a: &[Pause]) -> Pauses {
        [("a", of_a.to_vec()), ("b", Vec::new())].into()
    }

    #[test]
    fn two_holders_are_seen_unless_the_first_one_was_stopped_or_failed_over() {
        let clock = Clock(Instant::now());
        let overlapping = || {
            let seen = Seen::default();
            clock.held(&seen, "a", 1, (1, 5));
            clock.held(&seen, "b", 2, (4, 6));
            seen
        };
        let broken = |limits: &[Limit], of_a: &[Pause]| {
            let verdict = Verdict::of(overlapping(), limits, &pauses(of_a), Fences::Rise);
            verdict.broken.len()
        };
        let (early, late) = ((clock.at(2), clock.at(3)), (clock.at(5), clock.at(6)));
        let limit = |of| Limit {
            reason: "",
            of,
            time: early,
        };
        assert_eq!(broken(&[], &[]), 1);
        assert_eq!(broken(&[], &[late]), 1);
        assert_eq!(broken(&[], &[early]), 0);
        assert_eq!(broken(&[limit(Holds::Unreplicated)], &[]), 0);
        assert_eq!(broken(&[limit(Holds::All)], &[]), 0);
        assert_eq!(broken(&[limit(Holds::Sessions)], &[]), 1, "no session");
    }

    #[test]
    fn two_holders_are_seen_on_masters_whose_fences_tell_nothing() {
        let clock = Clock(Instant::now());
        for (second, broken) in [((4, 6), 1), ((5, 6), 0)] {
            let seen = Seen::default();
            clock.held(&seen, "a", 0, (1, 5));
            clock.held(&seen, "b", 0, second);
            let verdict = Verdict::of(seen, &[], &pauses(&[]), Fences::OfEachMaster);
            assert_eq!(verdict.broken.len(), broken, "{verdict}");
        }
    }

    #[test]
    fn a_falling_fence_a_call_without_end_and_a_silent_client_are_seen() {
        let clock = Clock(Instant::now());
        let seen = Seen::default();
        clock.held(&seen, "a", 2, (1, 2));
        clock.held(&seen, "a", 1, (3, 4));
        seen.hang("a", "a release", false);
        seen.hang("a", "an acquire", true);
        let mut verdict = Verdict::of(seen, &[], &pauses(&[]), Fences::Rise);
        verdict.add("a crash", None);
        // The fence of the grant and that of the hold, the release, and the client b.
        assert_eq!(verdict.broken.len(), 4, "{verdict}");
        assert!(!verdict.is_kept());
    }
}
