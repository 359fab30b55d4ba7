//! The promises of redis-lock, written once. Every tool that tries them judges by these checks.
//!
//! The checks know neither the lock table nor a server. A tool describes what it saw as plain
//! values, and a check returns the promise that they break:
//!
//! - [`state`]: the locks, waiters and marks at one moment;
//! - [`step`]: the same before and after one decision of the lock table;
//! - [`history`]: the grants and holds that clients saw by their own clocks.
//!
//! Each check has a test that fails if the check is switched off.

pub mod history;
pub mod state;
pub mod step;

use std::fmt;

/// A promise to the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// At most one exclusive holder has a lock.
    OneExclusive,
    /// A shared holder is never beside an exclusive one.
    SharedApart,
    /// A grant never takes more permits than each LIMIT allows.
    Limit,
    /// Fences strictly rise.
    FencesRise,
    /// The waiters of a queue are granted in their order.
    FirstComeFirstServed,
    /// No waiter that the lock admits keeps waiting.
    Quiescence,
    /// A client that is known to be gone gets no grant, and keeps none that is tied to it.
    NoneToTheGone,
    /// A grant with SESSION KEEP stays for that long after its client is gone.
    KeptAfterClose,
    /// The token has again what it held before a hand-over that was taken back.
    TakeBackRestores,
    /// Only its token releases or extends a grant. Otherwise its lease or its connection ends it.
    OnlyTheToken,
    /// A token that has left gets nothing until its mark ends.
    LeftGetsNothing,
    /// A lease is never shorter than asked.
    LeaseAsAsked,
    /// A refused command changes nothing.
    RefusedChangesNothing,
    /// The state that effects or a file rebuild equals the state.
    Rebuilt,
    /// Nothing is left after the last client has gone.
    NothingLeft,
    /// No client waits for long while a server takes writes.
    NobodyStuck,
}

/// A broken promise, with what shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The promise.
    pub promise: Promise,
    /// The values that break the promise.
    pub shown_by: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is broken: {}", self.promise, self.shown_by)
    }
}

impl std::error::Error for Broken {}

/// The result of a check.
pub type Verdict = Result<(), Broken>;

/// Checks that what was rebuilt equals the original.
pub fn rebuilt<T: PartialEq + fmt::Debug>(original: &T, rebuilt: &T) -> Verdict {
    require(original == rebuilt, Promise::Rebuilt, || {
        format!("{rebuilt:?} instead of {original:?}")
    })
}

/// Checks that each of these counts is 0 after the last client has gone.
pub fn nothing_left<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Verdict {
    counts.into_iter().try_for_each(|(what, count)| {
        require(count == 0, Promise::NothingLeft, || {
            format!("{what} is {count}")
        })
    })
}

/// Returns the promise as broken unless `is_kept`.
fn require(is_kept: bool, promise: Promise, shown_by: impl FnOnce() -> String) -> Verdict {
    if is_kept {
        return Ok(());
    }
    Err(Broken {
        promise,
        shown_by: shown_by(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuilt_state_that_differs_is_seen() {
        assert_eq!(rebuilt(&[1, 2], &[1, 2]), Ok(()));
        let broken = rebuilt(&[1, 2], &[1, 3]).unwrap_err();
        assert_eq!(broken.promise, Promise::Rebuilt);
    }

    #[test]
    fn a_waiter_that_is_left_is_seen() {
        assert_eq!(nothing_left([("waiters", 0), ("sessions", 0)]), Ok(()));
        let broken = nothing_left([("waiters", 0), ("sessions", 1)]).unwrap_err();
        assert_eq!(broken.promise, Promise::NothingLeft);
        assert_eq!(broken.shown_by, "sessions is 1");
    }
}
