//! The locks, waiters and marks at one moment, and the promises about them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{require, Promise, Verdict};

/// The mode of a hold or of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The key has no other holder.
    Exclusive,
    /// The key may have other shared holders.
    Shared,
}

/// A grant that is in force at one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's token.
    pub token: String,
    /// The mode of the grant.
    pub mode: Mode,
    /// The fence of the grant.
    pub fence: u64,
    /// The most permits that all holders may take; 0: no limit.
    pub limit: u32,
    /// The permits that this holder takes.
    pub permits: u32,
    /// The end of the lease, in ms by the server's clock.
    pub deadline_ms: u64,
    /// The client that the grant is tied to (SESSION).
    pub client: Option<u64>,
    /// The end of the lease after that client is gone (SESSION KEEP), once the client is gone.
    pub kept_until_ms: Option<u64>,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The waiter's token.
    pub token: String,
    /// The keys that the waiter needs. A token waits once for the same keys.
    pub keys: Vec<String>,
    /// The mode of the request.
    pub mode: Mode,
    /// The LIMIT of the request; 0: none.
    pub limit: u32,
    /// The PERMITS of the request; 1 without LIMIT.
    pub permits: u32,
    /// The lease that a grant has to have at least, in ms.
    pub lease_ms: u64,
    /// True if no command of the token waits. Such a waiter is skipped.
    pub is_absent: bool,
    /// True if the server is still to end the wait: its BLOCK or KEEP is over, its user has lost the
    /// rights, or too few replicas are online.
    pub is_over: bool,
    /// The client that is blocked, if there is one.
    pub client: Option<u64>,
}

/// The state of some keys at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The holders of each lock.
    pub locks: BTreeMap<String, Vec<Holder>>,
    /// The waiters of all keys, in their order.
    pub waiters: Vec<Waiter>,
    /// The keys and tokens of LEAVE marks that last.
    pub marks: BTreeSet<(String, String)>,
    /// The clients that are known to be gone.
    pub gone: BTreeSet<u64>,
    /// The keys that the timer is still to settle. Their waiters may be admissible.
    pub unsettled: BTreeSet<String>,
}

impl Waiter {
    /// Returns true if this is the same wait, in another state.
    pub fn is_same_wait(&self, other: &Self) -> bool {
        (&self.token, &self.keys) == (&other.token, &other.keys)
    }
}

impl State {
    /// Returns the holders of a key.
    pub fn holders(&self, key: &str) -> &[Holder] {
        self.locks.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns the grant of a token at a key.
    pub fn holder(&self, key: &str, token: &str) -> Option<&Holder> {
        let mut holders = self.holders(key).iter();
        holders.find(|holder| holder.token == token)
    }

    /// Returns the waiters that need a key, in their order.
    pub fn queue<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Waiter> + 'a {
        let needs = move |waiter: &&Waiter| waiter.keys.iter().any(|needed| needed == key);
        self.waiters.iter().filter(needs)
    }

    /// Returns the waits of a token for a key.
    pub fn waits<'a>(
        &'a self,
        key: &'a str,
        token: &'a str,
    ) -> impl Iterator<Item = &'a Waiter> + 'a {
        self.queue(key).filter(move |waiter| waiter.token == token)
    }

    /// Checks the promises that hold at every moment.
    pub fn check(&self) -> Verdict {
        for (key, holders) in &self.locks {
            check_modes(key, holders)?;
        }
        self.check_marks()
    }

    /// Checks the promises that hold once the timer has done what is due.
    pub fn check_settled(&self) -> Verdict {
        self.check_gone()?;
        let present = self.waiters.iter().filter(|waiter| !waiter.is_absent);
        for waiter in present {
            let is_admitted = waiter.keys.iter().all(|key| self.admits(key, waiter));
            require(!is_admitted, Promise::Quiescence, || {
                format!("{waiter:?} waits, and {:?}", self.locks)
            })?;
        }
        Ok(())
    }

    fn check_marks(&self) -> Verdict {
        for (key, token) in &self.marks {
            let waits = self.waits(key, token).next().is_some();
            require(!waits, Promise::LeftGetsNothing, || {
                format!("{token} has left {key} and waits for it")
            })?;
        }
        Ok(())
    }

    fn check_gone(&self) -> Verdict {
        let holders = self.locks.values().flatten();
        let holders = holders.filter_map(|it| Some((&it.token, it.client?)));
        let waiters = self.waiters.iter();
        let waiters = waiters.filter_map(|it| Some((&it.token, it.client?)));
        for (token, client) in holders.chain(waiters) {
            require(!self.gone.contains(&client), Promise::NoneToTheGone, || {
                format!("{token} of client {client}, which is gone")
            })?;
        }
        Ok(())
    }

    /// Returns true if neither the holders nor the queue of a key hold a waiter up.
    fn admits(&self, key: &str, waiter: &Waiter) -> bool {
        if self.unsettled.contains(key) {
            return false;
        }
        let holders = self.holders(key);
        let others: Vec<&Holder> = holders
            .iter()
            .filter(|it| it.token != waiter.token)
            .collect();
        let is_shared = |holder: &&Holder| holder.mode == Mode::Shared;
        let fits = match waiter.mode {
            Mode::Exclusive => others.is_empty(),
            Mode::Shared => others.iter().all(is_shared) && has_room(&others, waiter),
        };
        let own = self.holder(key, &waiter.token);
        let repeats = own.is_some_and(|own| match waiter.mode {
            Mode::Exclusive => own.mode == Mode::Exclusive,
            Mode::Shared => own.mode == Mode::Exclusive || waiter.permits <= own.permits,
        });
        let head = self.queue(key).find(|it| !it.is_absent);
        let is_head = head.is_some_and(|head| head.is_same_wait(waiter));
        repeats || (fits && (own.is_some() || is_head))
    }
}

/// Checks which modes the holders of a key have together.
fn check_modes(key: &str, holders: &[Holder]) -> Verdict {
    let is_exclusive = |holder: &&Holder| holder.mode == Mode::Exclusive;
    let exclusive = holders.iter().filter(is_exclusive).count();
    let shown_by = || format!("{key}: {holders:?}");
    require(exclusive <= 1, Promise::OneExclusive, shown_by)?;
    let is_apart = exclusive == 0 || holders.len() == exclusive;
    require(is_apart, Promise::SharedApart, shown_by)
}

/// Returns true if a waiter's permits fit beside those of the other holders, under every limit.
fn has_room(others: &[&Holder], waiter: &Waiter) -> bool {
    let taken: u32 = others.iter().map(|it| it.permits).sum();
    let limits = others.iter().map(|it| it.limit).chain([waiter.limit]);
    let mut limits = limits.filter(|limit| *limit > 0);
    limits.all(|limit| taken + waiter.permits <= limit)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn holder(token: &str, mode: Mode) -> Holder {
        Holder {
            token: token.to_owned(),
            mode,
            fence: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 100,
            client: None,
            kept_until_ms: None,
        }
    }

    /// The client of each waiter.
    pub(crate) const CLIENT: u64 = 2;

    pub(crate) fn waiter(token: &str, keys: &[&str]) -> Waiter {
        Waiter {
            token: token.to_owned(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            mode: Mode::Exclusive,
            limit: 0,
            permits: 1,
            lease_ms: 10,
            is_absent: false,
            is_over: false,
            client: Some(CLIENT),
        }
    }

    pub(crate) fn state(locks: &[(&str, &[Holder])], waiters: &[Waiter]) -> State {
        let locks = locks.iter();
        State {
            locks: locks
                .map(|(key, holders)| ((*key).to_owned(), holders.to_vec()))
                .collect(),
            waiters: waiters.to_vec(),
            ..State::default()
        }
    }

    #[track_caller]
    pub(crate) fn assert_broken(verdict: Verdict, promise: Promise) {
        assert_eq!(verdict.map_err(|broken| broken.promise), Err(promise));
    }

    #[test]
    fn two_exclusive_holders_are_seen() {
        let [a, b] = ["a", "b"].map(|token| holder(token, Mode::Exclusive));
        assert_eq!(
            state(&[("x", std::slice::from_ref(&a))], &[]).check(),
            Ok(())
        );
        assert_broken(state(&[("x", &[a, b])], &[]).check(), Promise::OneExclusive);
    }

    #[test]
    fn a_shared_holder_beside_an_exclusive_one_is_seen() {
        let [a, b] = ["a", "b"].map(|token| holder(token, Mode::Shared));
        assert_eq!(state(&[("x", &[a.clone(), b])], &[]).check(), Ok(()));
        let both = [a, holder("c", Mode::Exclusive)];
        assert_broken(state(&[("x", &both)], &[]).check(), Promise::SharedApart);
    }

    #[test]
    fn a_token_that_has_left_and_waits_is_seen() {
        let mut left = state(&[], &[waiter("a", &["x", "y"])]);
        assert_eq!(left.check(), Ok(()));
        left.marks.insert(("y".to_owned(), "a".to_owned()));
        assert_broken(left.check(), Promise::LeftGetsNothing);
    }

    #[test]
    fn a_waiter_or_a_tie_of_a_client_that_is_gone_is_seen() {
        let tied = Holder {
            client: Some(7),
            ..holder("a", Mode::Exclusive)
        };
        let mut gone = state(&[("x", &[tied])], &[waiter("b", &["x"])]);
        assert_eq!(gone.check_settled(), Ok(()));
        for client in [7, CLIENT] {
            gone.gone = BTreeSet::from([client]);
            assert_broken(gone.check_settled(), Promise::NoneToTheGone);
        }
    }

    #[test]
    fn a_waiter_that_is_first_at_a_free_lock_is_seen() {
        let [first, second] = [waiter("a", &["x", "y"]), waiter("b", &["x"])];
        let held = ("y", &[holder("c", Mode::Exclusive)][..]);
        let mut both = state(&[held], &[first, second]);
        assert_eq!(both.check_settled(), Ok(()), "y is held, and a is before b");
        both.waiters[0].is_absent = true;
        assert_broken(both.check_settled(), Promise::Quiescence);
        both.unsettled.insert("x".to_owned());
        assert_eq!(both.check_settled(), Ok(()), "the timer is to look at x");
    }

    #[test]
    fn a_waiter_with_enough_permits_is_seen() {
        let with_limit = |limit| Holder {
            limit,
            permits: 2,
            ..holder("a", Mode::Shared)
        };
        let shares = Waiter {
            mode: Mode::Shared,
            limit: 3,
            ..waiter("b", &["x"])
        };
        let full = state(&[("x", &[with_limit(2)])], std::slice::from_ref(&shares));
        assert_eq!(full.check_settled(), Ok(()));
        let room = state(&[("x", &[with_limit(3)])], &[shares]);
        assert_broken(room.check_settled(), Promise::Quiescence);
    }

    #[test]
    fn an_upgrade_that_is_alone_is_seen() {
        let [a, b] = ["a", "b"].map(|token| holder(token, Mode::Shared));
        let upgrade = waiter("a", &["x"]);
        let waits = state(&[("x", &[a.clone(), b])], std::slice::from_ref(&upgrade));
        assert_eq!(waits.check_settled(), Ok(()));
        let alone = state(&[("x", &[a])], &[upgrade]);
        assert_broken(alone.check_settled(), Promise::Quiescence);
    }
}
