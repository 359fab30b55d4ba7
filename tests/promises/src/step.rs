//! The state before and after one decision of the lock table, and the promises about the change.

use crate::state::{Holder, State, Waiter};
use crate::{require, Promise, Verdict};

/// The reason for which the lock table decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client's command.
    Command {
        /// The command's token.
        token: String,
        /// The lease in ms that a grant to the command has to have at least; `None` for a command
        /// that requests no grant.
        lease_ms: Option<u64>,
        /// True if the reply was an error.
        is_refused: bool,
    },
    /// The timer, or an event of the server.
    Timer,
    /// The take-back of a hand-over.
    TakeBack {
        /// The token that the lock was handed over to.
        token: String,
        /// The keys where the hand-over replaced a grant of the token that is still in force.
        restores: Vec<String>,
    },
}

/// One decision of the lock table.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The state before it.
    pub before: &'a State,
    /// The state after it.
    pub after: &'a State,
    /// The reason for it.
    pub cause: &'a Cause,
    /// The time of it, in ms by the server's clock.
    pub now_ms: u64,
    /// The greatest fence that any grant had before it.
    pub last_fence: u64,
}

/// A grant after the step, with the same token's grant before the step.
struct Change<'a> {
    key: &'a str,
    before: Option<&'a Holder>,
    after: &'a Holder,
}

impl Step<'_> {
    /// Checks all promises about one step.
    pub fn check(&self) -> Verdict {
        self.check_kept()?;
        self.check_kept_after_close()?;
        self.check_restored()?;
        self.check_refused()?;
        for change in self.changes() {
            self.check_fence(&change)?;
            self.check_permits(&change)?;
            if change.before.is_none() && !self.restores(&change.after.token) {
                self.check_newcomer(&change)?;
            }
        }
        Ok(())
    }

    /// Checks that every grant of another token is as it was, unless its own lease, connection or
    /// wait changed it.
    fn check_kept(&self) -> Verdict {
        for (key, holder) in self.holders_before() {
            let is_over = self.now_ms > holder.deadline_ms || self.is_gone(holder);
            if is_over || self.is_of_cause(&holder.token) {
                continue;
            }
            let after = self.after.holder(key, &holder.token);
            let waits = self.before.waits(key, &holder.token).next().is_some();
            let is_kept = after.is_some_and(|after| {
                let is_same = after.deadline_ms == holder.deadline_ms;
                let is_renewed = holder.client.is_some() && after.deadline_ms > holder.deadline_ms;
                waits || is_same || is_renewed
            });
            require(is_kept, Promise::OnlyTheToken, || {
                format!("{key}: {after:?} instead of {holder:?} by {:?}", self.cause)
            })?;
        }
        Ok(())
    }

    /// Checks that a grant with SESSION KEEP stays after its client is gone. It lasts until KEEP
    /// ends, also if it is not settled yet.
    fn check_kept_after_close(&self) -> Verdict {
        for (key, holder) in self.holders_before() {
            let lasts = |until_ms: &u64| *until_ms.min(&holder.deadline_ms) >= self.now_ms;
            let Some(until_ms) = holder.kept_until_ms.filter(lasts) else {
                continue;
            };
            let waits = self.before.waits(key, &holder.token).next().is_some();
            if waits || self.is_of_cause(&holder.token) {
                continue;
            }
            let after = self.after.holder(key, &holder.token);
            let is_kept = after.is_some_and(|it| it == holder || it.deadline_ms == until_ms);
            require(is_kept, Promise::KeptAfterClose, || {
                format!("{key}: {after:?} instead of {holder:?} by {:?}", self.cause)
            })?;
        }
        Ok(())
    }

    /// Checks that a take-back restores the grants that the hand-over replaced.
    fn check_restored(&self) -> Verdict {
        let Cause::TakeBack { token, restores } = self.cause else {
            return Ok(());
        };
        let lacks = |key: &&String| self.after.holder(key, token).is_none();
        let lacking = restores.iter().find(lacks);
        require(lacking.is_none(), Promise::TakeBackRestores, || {
            format!("{token} does not hold {lacking:?} again")
        })
    }

    /// Checks that a refused command left its token's grants and waits alone. If something other than a
    /// lock came to a key, the command settles that too, and it ends all waits there. If another wait
    /// there is over, the command may be accepted before that one ends, and refused at its turn.
    fn check_refused(&self) -> Verdict {
        let Cause::Command {
            token,
            is_refused: true,
            ..
        } = self.cause
        else {
            return Ok(());
        };
        let own = |state: &State| -> Vec<Waiter> {
            let waiters = state.waiters.iter().filter(|it| it.token == *token);
            waiters.cloned().collect()
        };
        let (before, after) = (own(self.before), own(self.after));
        let is_new = |waiter: &&Waiter| !before.iter().any(|it| it.is_same_wait(waiter));
        let new = after.iter().find(is_new);
        require(new.is_none(), Promise::RefusedChangesNothing, || {
            format!("{new:?} waits by {:?}", self.cause)
        })?;
        for waiter in &before {
            let key = &waiter.keys[0];
            let is_there = after.iter().any(|it| it.is_same_wait(waiter));
            let is_granted = self.after.holder(key, token).is_some();
            let is_moved = waiter
                .keys
                .iter()
                .any(|key| self.before.unsettled.contains(key));
            let is_late =
                |it: &Waiter| it.is_over && it.keys.iter().any(|key| waiter.keys.contains(key));
            let has_turn = self.before.waiters.iter().any(is_late);
            let is_kept = is_there || is_granted || is_moved || has_turn;
            require(is_kept, Promise::RefusedChangesNothing, || {
                format!("{waiter:?} no longer waits by {:?}", self.cause)
            })?;
        }
        for (key, holder) in self.holders_before() {
            let is_own = holder.token == *token && before.is_empty() && holder.client.is_none();
            let is_kept = self.after.holder(key, token) == Some(holder);
            let is_over = self.now_ms > holder.deadline_ms;
            require(
                !is_own || is_kept || is_over,
                Promise::RefusedChangesNothing,
                || format!("{key}: {holder:?} changed by {:?}", self.cause),
            )?;
        }
        Ok(())
    }

    fn check_fence(&self, change: &Change) -> Verdict {
        let Change { key, before, after } = change;
        let least = match before {
            Some(before) => before.fence,
            None => self.last_fence + 1,
        };
        let rises = after.fence >= least || self.restores(&after.token);
        require(rises, Promise::FencesRise, || {
            format!("{key}: {after:?} after the fence {}", self.last_fence)
        })
    }

    /// Checks that a token got permits only within all limits.
    ///
    /// A repeat may set a limit below the permits that are taken already. So a lowered limit isn't
    /// checked, nor the limit of a token that is granted several requests in one step.
    fn check_permits(&self, change: &Change) -> Verdict {
        let Change { key, before, after } = change;
        let got_more = before.is_none_or(|before| after.permits > before.permits);
        if !got_more || self.restores(&after.token) || self.is_limit_lowered(key) {
            return Ok(());
        }
        let holders = self.after.holders(key);
        let taken: u32 = holders.iter().map(|holder| holder.permits).sum();
        let limiting = holders.iter();
        let limiting = limiting.filter(|it| self.requests(key, &it.token) <= 1);
        let mut limits = limiting.map(|it| it.limit).filter(|limit| *limit > 0);
        require(limits.all(|limit| taken <= limit), Promise::Limit, || {
            format!("{key}: {holders:?}")
        })
    }

    /// Returns the number of requests of a token for a key that the step may have granted.
    fn requests(&self, key: &str, token: &str) -> usize {
        self.before.waits(key, token).count() + usize::from(self.is_of_cause(token))
    }

    fn is_limit_lowered(&self, key: &str) -> bool {
        self.after.holders(key).iter().any(|after| {
            let before = self.before.holder(key, &after.token);
            let lowers = |before: &Holder| before.limit == 0 || after.limit < before.limit;
            after.limit > 0 && before.is_some_and(lowers)
        })
    }

    fn check_newcomer(&self, change: &Change) -> Verdict {
        self.check_left(change)?;
        self.check_lease(change)?;
        self.check_order(change)?;
        let client = change.after.client;
        let is_gone = client.is_some_and(|client| self.before.gone.contains(&client));
        require(!is_gone, Promise::NoneToTheGone, || {
            format!("{}: {:?}", change.key, change.after)
        })
    }

    fn check_left(&self, change: &Change) -> Verdict {
        let mark = (change.key.to_owned(), change.after.token.clone());
        require(
            !self.before.marks.contains(&mark),
            Promise::LeftGetsNothing,
            || format!("{} has left {} and holds it", mark.1, mark.0),
        )
    }

    /// Checks that a grant was asked for, and is as long as asked.
    fn check_lease(&self, change: &Change) -> Verdict {
        let Change { key, after, .. } = change;
        let waits = self.before.waits(key, &after.token).map(|it| it.lease_ms);
        let asked = waits.chain(self.asked_by_command(&after.token)).min();
        require(asked.is_some(), Promise::OnlyTheToken, || {
            format!("{key}: {after:?}, which nobody asked for")
        })?;
        let is_long_enough = asked.is_some_and(|ms| after.deadline_ms >= self.now_ms + ms);
        // Another command of the token, like an extension, may have set the lease at once.
        let is_set_anew =
            self.is_of_cause(&after.token) && self.asked_by_command(&after.token).is_none();
        require(is_long_enough || is_set_anew, Promise::LeaseAsAsked, || {
            format!("{key}: {after:?} at {}, asked {asked:?} ms", self.now_ms)
        })
    }

    /// Returns the lease that the command of this step asks for, if it is a request of this token.
    fn asked_by_command(&self, of: &str) -> Option<u64> {
        match self.cause {
            Cause::Command {
                token, lease_ms, ..
            } if token == of => *lease_ms,
            _ => None,
        }
    }

    /// Checks that no waiter that was before the newcomer in the queue still waits.
    fn check_order(&self, change: &Change) -> Verdict {
        let Change { key, after, .. } = change;
        let is_own = |waiter: &&Waiter| waiter.token == after.token;
        let mut before_it = self.before.queue(key).take_while(|it| !is_own(it));
        let passed = before_it.find(|waiter| {
            let mut waiting = self.after.queue(key).filter(|it| !it.is_absent);
            let could_be_granted = !waiter.is_absent && !waiter.is_over;
            let still_waits = waiting.any(|it| it.is_same_wait(waiter));
            could_be_granted && still_waits && !self.is_of_cause(&waiter.token)
        });
        require(passed.is_none(), Promise::FirstComeFirstServed, || {
            format!("{key}: {after:?} was granted before {passed:?}")
        })
    }

    fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.after.locks.iter().flat_map(move |(key, holders)| {
            holders.iter().map(move |after| Change {
                key,
                before: self.live_before(key, &after.token),
                after,
            })
        })
    }

    /// Returns the grant of a token before the step, if it was in force. A late timer still renews
    /// a tied grant, or keeps it for KEEP.
    fn live_before(&self, key: &str, token: &str) -> Option<&Holder> {
        let before = self.before.holder(key, token)?;
        let is_live = self.now_ms <= before.deadline_ms || before.client.is_some();
        is_live.then_some(before)
    }

    fn holders_before(&self) -> impl Iterator<Item = (&str, &Holder)> {
        let locks = self.before.locks.iter();
        locks.flat_map(|(key, holders)| holders.iter().map(move |holder| (key.as_str(), holder)))
    }

    fn is_gone(&self, holder: &Holder) -> bool {
        let client = holder.client;
        client.is_some_and(|client| self.before.gone.contains(&client))
    }

    fn is_of_cause(&self, of: &str) -> bool {
        match self.cause {
            Cause::Command { token, .. } | Cause::TakeBack { token, .. } => token == of,
            Cause::Timer => false,
        }
    }

    /// Returns true if the step may restore an earlier grant of this token.
    fn restores(&self, token: &str) -> bool {
        matches!(self.cause, Cause::TakeBack { token: of, .. } if of == token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{assert_broken, holder, state, waiter};
    use crate::state::Mode::{Exclusive, Shared};

    const NOW_MS: u64 = 50;

    fn command(token: &str, lease_ms: u64) -> Cause {
        Cause::Command {
            token: token.to_owned(),
            lease_ms: Some(lease_ms),
            is_refused: false,
        }
    }

    fn refused(token: &str) -> Cause {
        Cause::Command {
            token: token.to_owned(),
            lease_ms: Some(10),
            is_refused: true,
        }
    }

    fn check(before: &State, after: &State, cause: &Cause) -> Verdict {
        let step = Step {
            before,
            after,
            cause,
            now_ms: NOW_MS,
            last_fence: 0,
        };
        step.check()
    }

    #[test]
    fn a_grant_that_another_tokens_command_ends_is_seen() {
        let held = state(&[("x", &[holder("a", Exclusive)])], &[]);
        let free = state(&[], &[]);
        assert_eq!(check(&held, &free, &command("a", 10)), Ok(()));
        for cause in [command("b", 10), Cause::Timer] {
            assert_broken(check(&held, &free, &cause), Promise::OnlyTheToken);
        }
        let over = Holder {
            deadline_ms: NOW_MS - 1,
            ..holder("a", Exclusive)
        };
        let over = state(&[("x", &[over])], &[]);
        assert_eq!(check(&over, &free, &Cause::Timer), Ok(()));
    }

    #[test]
    fn a_lease_that_another_tokens_command_changes_is_seen() {
        let of = |deadline_ms| Holder {
            deadline_ms,
            ..holder("a", Exclusive)
        };
        let before = state(&[("x", &[of(100)])], &[]);
        for deadline_ms in [90, 110] {
            let after = state(&[("x", &[of(deadline_ms)])], &[]);
            assert_eq!(check(&before, &after, &command("a", 40)), Ok(()));
            let verdict = check(&before, &after, &command("b", 40));
            assert_broken(verdict, Promise::OnlyTheToken);
        }
    }

    #[test]
    fn a_grant_that_nobody_asked_for_is_seen() {
        let (free, held) = (
            state(&[], &[]),
            state(&[("x", &[holder("a", Shared)])], &[]),
        );
        assert_eq!(check(&free, &held, &command("a", 10)), Ok(()));
        assert_broken(check(&free, &held, &Cause::Timer), Promise::OnlyTheToken);
    }

    #[test]
    fn a_grant_that_is_not_kept_after_its_client_is_gone_is_seen() {
        const GONE: u64 = 7;
        let until = |until_ms| Holder {
            client: Some(GONE),
            kept_until_ms: Some(until_ms),
            ..holder("a", Exclusive)
        };
        let after_close = |until_ms| {
            let mut state = state(&[("x", &[until(until_ms)])], &[]);
            state.gone.insert(GONE);
            state
        };
        let kept = Holder {
            deadline_ms: NOW_MS + 10,
            ..holder("a", Exclusive)
        };
        let (before, free) = (after_close(NOW_MS + 10), state(&[], &[]));
        let kept = state(&[("x", &[kept])], &[]);
        for after in [&before, &kept] {
            assert_eq!(check(&before, after, &Cause::Timer), Ok(()));
        }
        let verdict = check(&before, &free, &Cause::Timer);
        assert_broken(verdict, Promise::KeptAfterClose);
        let verdict = check(&after_close(NOW_MS + 20), &kept, &Cause::Timer);
        assert_broken(verdict, Promise::KeptAfterClose);
        let over = after_close(NOW_MS - 1);
        assert_eq!(check(&over, &free, &Cause::Timer), Ok(()));
    }

    #[test]
    fn a_take_back_that_does_not_restore_is_seen() {
        let cause = Cause::TakeBack {
            token: "a".to_owned(),
            restores: vec!["x".to_owned()],
        };
        let held = state(&[("x", &[holder("a", Exclusive)])], &[]);
        assert_eq!(check(&held, &held, &cause), Ok(()));
        let verdict = check(&held, &state(&[], &[]), &cause);
        assert_broken(verdict, Promise::TakeBackRestores);
    }

    #[test]
    fn a_refused_command_that_changed_something_is_seen() {
        let held = state(&[("x", &[holder("a", Exclusive)])], &[]);
        let waits = state(&[], &[waiter("a", &["x"])]);
        let nothing = state(&[], &[]);
        assert_eq!(check(&held, &held, &refused("a")), Ok(()));
        let cases = [(&held, &nothing), (&waits, &nothing), (&nothing, &waits)];
        for (before, after) in cases {
            let verdict = check(before, after, &refused("a"));
            assert_broken(verdict, Promise::RefusedChangesNothing);
        }
        let over = Waiter {
            is_over: true,
            ..waiter("b", &["x"])
        };
        let waits = state(&[], &[over, waiter("a", &["x"])]);
        assert_eq!(check(&waits, &nothing, &refused("a")), Ok(()));
    }

    #[test]
    fn a_fence_that_does_not_rise_is_seen() {
        let (free, held) = (
            state(&[], &[]),
            state(&[("x", &[holder("a", Shared)])], &[]),
        );
        let cause = command("a", 10);
        let step = |last_fence| Step {
            before: &free,
            after: &held,
            cause: &cause,
            now_ms: NOW_MS,
            last_fence,
        };
        assert_eq!(step(0).check(), Ok(()));
        assert_broken(step(1).check(), Promise::FencesRise);
        let higher = Holder {
            fence: 2,
            ..holder("a", Shared)
        };
        let higher = state(&[("x", &[higher])], &[]);
        assert_broken(check(&higher, &held, &cause), Promise::FencesRise);
    }

    #[test]
    fn more_permits_than_the_limit_are_seen() {
        let with_limit = |token, limit| Holder {
            limit,
            permits: 2,
            ..holder(token, Shared)
        };
        let before = state(&[("x", &[with_limit("a", 4)])], &[]);
        let beside = |limit| state(&[("x", &[with_limit("a", 4), with_limit("b", limit)])], &[]);
        assert_eq!(check(&before, &beside(4), &command("b", 10)), Ok(()));
        let verdict = check(&before, &beside(3), &command("b", 10));
        assert_broken(verdict, Promise::Limit);
    }

    #[test]
    fn a_grant_to_a_token_that_has_left_is_seen() {
        let mut left = state(&[], &[]);
        left.marks.insert(("x".to_owned(), "a".to_owned()));
        let held = state(&[("x", &[holder("a", Exclusive)])], &[]);
        let verdict = check(&left, &held, &command("a", 10));
        assert_broken(verdict, Promise::LeftGetsNothing);
    }

    #[test]
    fn a_lease_that_is_too_short_is_seen() {
        let (free, held) = (
            state(&[], &[]),
            state(&[("x", &[holder("a", Shared)])], &[]),
        );
        assert_eq!(check(&free, &held, &command("a", 50)), Ok(()));
        assert_broken(
            check(&free, &held, &command("a", 51)),
            Promise::LeaseAsAsked,
        );
    }

    #[test]
    fn a_newcomer_that_overtakes_a_waiter_is_seen() {
        let [first, second] = [waiter("a", &["x", "y"]), waiter("b", &["x"])];
        let both = state(&[], &[first.clone(), second.clone()]);
        let held = [holder("b", Exclusive)];
        let overtaken = state(&[("x", &held)], std::slice::from_ref(&first));
        for cause in [Cause::Timer, command("b", 10)] {
            let verdict = check(&both, &overtaken, &cause);
            assert_broken(verdict, Promise::FirstComeFirstServed);
        }
        let in_order = state(&[("x", &[holder("a", Exclusive)])], &[second]);
        assert_eq!(check(&both, &in_order, &Cause::Timer), Ok(()));
        let absent = Waiter {
            is_absent: true,
            ..first
        };
        let skipped = state(&[], &[absent, waiter("b", &["x"])]);
        assert_eq!(check(&skipped, &overtaken, &Cause::Timer), Ok(()));
    }

    #[test]
    fn a_grant_to_a_client_that_is_gone_is_seen() {
        let mut before = state(&[], &[waiter("a", &["x"])]);
        before.gone.insert(7);
        let tied = Holder {
            client: Some(7),
            ..holder("a", Exclusive)
        };
        let after = state(&[("x", &[tied])], &[]);
        let verdict = check(&before, &after, &Cause::Timer);
        assert_broken(verdict, Promise::NoneToTheGone);
    }
}
