//! The observations of the clients, and the promises that they break.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use redis_lock_promises::history::{fences_rise, no_writer_overlaps, within_limit, Granted, Hold};

use super::faults::Faults;
use super::seat::{Pause, PERMITS};

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
    is_session: bool,
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
    pub fn holds(&self, client: &'static str, is_session: bool, holds: impl Iterator<Item = Hold>) {
        let noted = holds.map(|hold| Noted {
            client,
            is_session,
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

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The promises that were broken, and the counts of what was seen.
pub struct Verdict {
    notes: Notes,
    /// The holds that the promises don't cover from some moment on, by the reason.
    out_of_scope: BTreeMap<&'static str, usize>,
    broken: Vec<String>,
}

impl Verdict {
    /// Judges what was seen.
    ///
    /// A hold counts until its process stopped or died. During a failover grants may be lost, and two
    /// primaries may grant. So a hold counts until a failover began, and one that began meanwhile
    /// doesn't count. A session's connection that is cut ends the grant at once, and most libraries learn
    /// of that by the next renewal.
    pub fn of(seen: Seen, faults: &Faults, pauses: &Pauses) -> Verdict {
        let notes = seen.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut verdict = Verdict {
            notes,
            out_of_scope: BTreeMap::new(),
            broken: Vec::new(),
        };
        let holds = verdict.covered_holds(faults, pauses);
        let is_covered = |grant: &&Granted| {
            let mut failovers = faults.failovers.iter();
            !failovers.any(|(from, to)| grant.answered >= *from && grant.asked <= *to)
        };
        let grants: Vec<Granted> = verdict
            .notes
            .grants
            .iter()
            .filter(is_covered)
            .cloned()
            .collect();
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

    fn covered_holds(&mut self, faults: &Faults, pauses: &Pauses) -> Vec<Hold> {
        let mut covered = Vec::new();
        for Noted {
            client,
            is_session,
            hold,
        } in &self.notes.holds
        {
            let stopped = pauses.get(client);
            let stopped = stopped.and_then(|pauses| first_within(pauses, hold));
            let superseded = first_within(&faults.failovers, hold);
            let cut = is_session
                .then(|| first_within(&faults.cuts, hold))
                .flatten();
            for (reason, ended) in [
                ("its process stopped or died", stopped),
                ("a failover", superseded),
                ("a session's connection was cut", cut),
            ] {
                *self.out_of_scope.entry(reason).or_default() += usize::from(ended.is_some());
            }
            let to = [Some(hold.to), stopped, superseded, cut]
                .into_iter()
                .flatten()
                .min();
            let hold = Hold {
                to: to.unwrap_or(hold.to),
                ..hold.clone()
            };
            if hold.to > hold.from {
                covered.push(hold);
            }
        }
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
                client == "session",
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
        let broken = |faults: &Faults, of_a: &[Pause]| {
            let verdict = Verdict::of(overlapping(), faults, &pauses(of_a));
            verdict.broken.len()
        };
        let (early, late) = ((clock.at(2), clock.at(3)), (clock.at(5), clock.at(6)));
        let failover = Faults {
            failovers: vec![early],
            ..Faults::default()
        };
        assert_eq!(broken(&Faults::default(), &[]), 1);
        assert_eq!(broken(&Faults::default(), &[late]), 1);
        assert_eq!(broken(&Faults::default(), &[early]), 0);
        assert_eq!(broken(&failover, &[]), 0);
        let cut = Faults {
            cuts: vec![early],
            ..Faults::default()
        };
        assert_eq!(broken(&cut, &[]), 1, "no session");
    }

    #[test]
    fn a_falling_fence_a_call_without_end_and_a_silent_client_are_seen() {
        let clock = Clock(Instant::now());
        let seen = Seen::default();
        clock.held(&seen, "a", 2, (1, 2));
        clock.held(&seen, "a", 1, (3, 4));
        seen.hang("a", "a release", false);
        seen.hang("a", "an acquire", true);
        let mut verdict = Verdict::of(seen, &Faults::default(), &pauses(&[]));
        verdict.add("a crash", None);
        // The fence of the grant and that of the hold, the release, and the client b.
        assert_eq!(verdict.broken.len(), 4, "{verdict}");
        assert!(!verdict.is_kept());
    }
}
